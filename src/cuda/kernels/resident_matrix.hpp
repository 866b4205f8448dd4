// Arguments of strategy `resident` for 16-bit elements, free of device code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/resident.hpp"
#include "cuda/matrix_layout.hpp"

namespace wtconv::cuda {

using MatrixCall = ResidentCallOf<MatrixLayout>;

// One per element type and kernel size, each in a unit of its own.
template <DType dtype, int kernel>
cudaError_t launch_resident_matrix_as(const MatrixCall& call, cudaStream_t stream);

}  // namespace wtconv::cuda
