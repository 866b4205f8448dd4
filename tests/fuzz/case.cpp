// The case grammar: any text is a case, which prints to a line that reads back the same, or an error with a message.
#include "harness/case.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

using namespace wtconv;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  harness::Case c, again;
  if (const Status s = harness::parse_case(text, c); s.ok()) {
    if (!validate(c.problem).ok()) std::abort();
    if (!harness::parse_case(to_string(c), again).ok() || !(again == c)) std::abort();
  } else if (s.message().empty()) {
    std::abort();
  }
  std::istringstream lines(text);
  std::vector<harness::Case> cases;
  (void)harness::read_cases(lines, "fuzz", cases);
  return 0;
}
