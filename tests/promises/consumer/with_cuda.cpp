// A program of another project that links the CUDA backend: it is registered, and says so where there is no GPU.
#include <cstdio>
#include <wtconv/wtconv.hpp>

int main() {
  const wtconv::Backend* backend = wtconv::find_backend("cuda");
  if (!backend) return std::printf("no backend cuda\n"), 1;
  const wtconv::Status status = backend->available();
  std::printf("cuda: %s\n", status.ok() ? "ok" : status.message().c_str());
  return wtconv::backends().front() != backend;
}
