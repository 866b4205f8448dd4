// The checks of a call's arguments, written once for all backends.
#pragma once

#include "wtconv/backend.hpp"

namespace wtconv {

// Views against the problem: rank, extents, dtypes, density, overlap; null where data is required.
Status validate_forward(const Problem&, const ConstTensorView& x, const Parameters&, const TensorView& y,
                        const Workspace&);
Status validate_backward(const Problem&, const ConstTensorView& x, const Parameters&, const ConstTensorView& dy,
                         const Gradients&, const Workspace&);
Status validate_options(const Options&);

}  // namespace wtconv
