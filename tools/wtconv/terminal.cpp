#include "terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace wtconv::tool {
namespace {

// v with three significant digits and no exponent.
std::string three_digits(double v) {
  const int integer_digits = v < 9.995 ? 1 : v < 99.95 ? 2 : 3;
  return fmt::format("{:.{}f}", v, 3 - integer_digits);
}

std::string with_unit(double v, double step, std::initializer_list<const char*> units) {
  auto unit = units.begin();
  while (v >= 999.5 && unit + 1 != units.end()) {
    v /= step;
    ++unit;
  }
  return fmt::format("{}{}{}", three_digits(v), **unit ? " " : "", *unit);
}

}  // namespace

bool use_colors() {
  static const bool use = [] {
    const char* off = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    return isatty(STDOUT_FILENO) && !(off && *off) && !(term && std::string(term) == "dumb");
  }();
  return use;
}

std::string styled(const std::string& text, Style style) {
  if (style == Style::plain || !use_colors()) return text;
  constexpr std::array<const char*, 6> codes{"", "1", "2", "32", "1;31", "36"};
  return fmt::format("\x1b[{}m{}\x1b[0m", codes[std::size_t(style)], text);
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  std::vector<bool> left;
  std::vector<std::vector<Cell>> all(1);
  for (std::string name : header_) {
    left.push_back(left.empty() || name.ends_with('<'));
    if (name.ends_with('<')) name.pop_back();
    widths.push_back(name.size());
    all[0].push_back({name, Style::bold});
  }
  all.insert(all.end(), rows_.begin(), rows_.end());
  for (const auto& cells : all) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].text.size());
  }
  std::string text;
  for (const auto& cells : all) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string fill(widths[i] - cells[i].text.size(), ' ');
      const std::string cell = cells[i].text.empty() ? "" : styled(cells[i].text, cells[i].style);
      line += (i ? "  " : "") + (left[i] ? cell + fill : fill + cell);
    }
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
    if (&cells == &all.front()) {
      std::size_t total = 0;
      for (std::size_t w : widths) total += w;
      text += styled(std::string(total + 2 * (widths.size() - 1), '-'), Style::dim) + "\n";
    }
  }
  return text;
}

std::string wrapped(const std::string& text, int indent, int width) {
  std::string result, line;
  const std::string margin(indent, ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && int(line.size() + 1 + word.size()) + indent > width) {
      result += margin + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line.empty() ? result : result + margin + line + "\n";
}

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO)) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  last_ = {};
}

void Progress::update(double fraction, const std::string& note) {
  if (!terminal_) return;
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const double total = elapsed / std::max(fraction, 1e-3);
  if (!drawn_ && (elapsed < 0.5 || total < 2)) return;
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  constexpr int cells = 24;
  const int full = std::clamp(int(std::lround(fraction * cells)), 0, cells);
  const std::string line = fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f}%  {:.0f} s left  {}", what_, "", full, "",
                                       cells - full, 100 * fraction, std::max(0.0, total - elapsed), note);
  std::fputs(("\r" + line.substr(0, 79) + "\x1b[K").c_str(), stderr);
  std::fflush(stderr);
}

std::string seconds_text(double seconds) {
  if (seconds >= 0.9995) return three_digits(seconds) + " s";
  if (seconds >= 0.9995e-3) return three_digits(seconds * 1e3) + " ms";
  if (seconds >= 0.9995e-6 || seconds == 0) return three_digits(seconds * 1e6) + " us";
  return three_digits(seconds * 1e9) + " ns";
}

std::string bytes_text(double bytes) {
  if (bytes < 999.5) return fmt::format("{:.0f} B", bytes);
  return with_unit(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string count_text(double count) {
  if (count < 999.5) return fmt::format("{:.0f}", count);
  return with_unit(count, 1000, {"", "k", "M", "G", "T", "P"});
}

}  // namespace wtconv::tool
