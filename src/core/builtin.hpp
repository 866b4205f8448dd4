// The backends that are linked into this library. Each lives in its own folder and defines its function there.
#pragma once

#include "wtconv/backend.hpp"

namespace wtconv {

const Backend& reference_backend();
const Backend& unfused_backend();
const Backend& cpu_backend();

}  // namespace wtconv
