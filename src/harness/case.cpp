#include "harness/case.hpp"

#include <cctype>
#include <charconv>
#include <climits>
#include <fstream>

namespace wtconv::harness {
namespace {

struct Flag {
  std::string_view name;
  bool Case::*member;
  bool value;  // what the flag sets the member to; the default is its opposite
};
constexpr Flag flags[] = {
    {"nhwc", &Case::channels_last, true}, {"nobias", &Case::bias, false},  {"wf32", &Case::f32_parameters, true},
    {"offset", &Case::offset, true},      {"sliced", &Case::sliced, true}, {"strided", &Case::strided, true},
    {"expanded", &Case::expanded, true},
};
constexpr const char* options = "s<stride>, nhwc, nobias, wf32, offset, sliced, strided, expanded";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Printable and short, whatever the input holds.
std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string s = "'";
  for (char c : text.substr(0, longest)) s += std::isprint(static_cast<unsigned char>(c)) ? c : '?';
  return s + (text.size() > longest ? "...'" : "'");
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Status parse(Case& result) {
    Case c;
    Problem& p = c.problem;
    std::int64_t kernel, levels;
    for (auto [letter, what, value, largest] : std::initializer_list<Extent>{{'n', "batch", &p.batch, INT64_MAX},
                                                                             {'c', "channels", &p.channels, INT64_MAX},
                                                                             {'h', "height", &p.height, INT64_MAX},
                                                                             {'w', "width", &p.width, INT64_MAX},
                                                                             {'k', "kernel", &kernel, INT_MAX},
                                                                             {'l', "levels", &levels, INT_MAX}}) {
      if (rest().empty() || rest()[0] != letter) {
        return fail(at_, std::string("expected ") + letter + " and a number (" + what + "), got " + quoted(rest()));
      }
      ++at_;
      if (Status s = number(rest(), what, largest, *value); !s.ok()) return s;
      while (!rest().empty() && is_digit(rest()[0])) ++at_;
    }
    p.kernel = static_cast<int>(kernel);
    p.levels = static_cast<int>(levels);
    if (rest().empty() || rest()[0] != '_') return fail(at_, "expected _ and a dtype, got " + quoted(rest()));
    ++at_;
    const std::string_view dtype = word();
    bool known = false;
    for (DType d : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      if (dtype != to_string(d)) continue;
      p.dtype = d;
      known = true;
    }
    if (!known) return fail(at_, "expected a dtype (f32, f64, f16, bf16), got " + quoted(dtype));
    at_ += dtype.size();
    bool has_stride = false;
    while (!rest().empty()) {  // rest() starts with _
      ++at_;
      const std::string_view option = word();
      if (option.size() > 1 && option[0] == 's' && is_digit(option[1])) {
        if (has_stride) return fail(at_, "option " + quoted(option) + " is a second stride");
        std::int64_t stride = 1;
        if (option.find_first_not_of("0123456789", 1) != option.npos) {
          return fail(at_, "expected s and a number (stride), got " + quoted(option));
        }
        ++at_;
        if (Status s = number(option.substr(1), "stride", INT_MAX, stride); !s.ok()) return s;
        --at_;
        p.stride = static_cast<int>(stride);
        has_stride = true;
      } else if (Status s = flag(option, c); !s.ok()) {
        return s;
      }
      at_ += option.size();
    }
    if (c.f32_parameters && compute_type(p.dtype) == p.dtype) {
      return fail(0, std::string("option wf32 needs dtype f16 or bf16, got ") + to_string(p.dtype));
    }
    if (Status s = validate(p); !s.ok()) return {s.code(), "case " + quoted(text_) + ": " + s.message()};
    result = c;
    return {};
  }

 private:
  struct Extent {
    char letter;
    const char* what;
    std::int64_t* value;
    std::int64_t largest;
  };

  std::string_view rest() const { return text_.substr(at_); }
  std::string_view word() const { return rest().substr(0, rest().find('_')); }

  Status fail(std::size_t at, const std::string& why) const {
    return {StatusCode::invalid_argument,
            "case " + quoted(text_) + ", character " + std::to_string(at + 1) + ": " + why};
  }

  // The digits `from` starts with; it must hold nothing else up to the next field.
  Status number(std::string_view from, const char* what, std::int64_t largest, std::int64_t& value) const {
    std::size_t digits = 0;
    while (digits < from.size() && is_digit(from[digits])) ++digits;
    const std::string_view text = from.substr(0, digits);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::invalid_argument) {
      return fail(at_, std::string("expected a number (") + what + "), got " + quoted(from));
    }
    if (error != std::errc() || value > largest) {
      return fail(at_, std::string(what) + " " + quoted(text) + " is too large");
    }
    return {};
  }

  Status flag(std::string_view option, Case& c) const {
    for (const Flag& f : flags) {
      if (option != f.name) continue;
      if (c.*f.member == f.value) return fail(at_, "option " + quoted(option) + " is given twice");
      c.*f.member = f.value;
      return {};
    }
    return fail(at_, "unknown option " + quoted(option) + "; there are " + options);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Status parse_case(std::string_view text, Case& result) { return Parser(text).parse(result); }

std::string to_string(const Case& c) {
  std::string s = to_string(c.problem);
  for (const Flag& f : flags) {
    if (c.*f.member == f.value) s += "_" + std::string(f.name);
  }
  return s;
}

Status read_cases(std::istream& in, const std::string& name, std::vector<Case>& result) {
  std::vector<Case> cases;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::string_view text = std::string_view(line).substr(0, line.find('#'));
    const auto first = text.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) continue;
    text = text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
    Case c;
    if (Status s = parse_case(text, c); !s.ok()) {
      return {s.code(), name + ":" + std::to_string(number) + ": " + s.message()};
    }
    cases.push_back(c);
  }
  if (in.bad()) return {StatusCode::invalid_argument, "cannot read " + name};
  result = std::move(cases);
  return {};
}

Status read_cases(const std::string& path, std::vector<Case>& result) {
  std::ifstream in(path);
  if (!in) return {StatusCode::invalid_argument, "cannot open " + path};
  return read_cases(in, path, result);
}

}  // namespace wtconv::harness
