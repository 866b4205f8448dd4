// What the tool prints: tables, colours and progress. Escape codes go to terminals only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace wtconv::tool {

enum class Style { plain, bold, dim, good, bad, accent };

// True if standard output is a terminal and NO_COLOR is not set (or empty).
bool use_colors();
std::string styled(const std::string& text, Style style);

struct Cell {
  std::string text;
  Style style = Style::plain;
  Cell(std::string t, Style s = Style::plain) : text(std::move(t)), style(s) {}
  Cell(const char* t) : text(t) {}
};

// Columns as wide as their widest cell, two blanks between them; the first is aligned left, the others right
// unless the header's name ends with '<', which is not printed.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<Cell>> rows_;
};

// `text` in lines of at most `width` columns, each after `indent` blanks.
std::string wrapped(const std::string& text, int indent, int width = 80);

// A bar on standard error, if that is a terminal, for work that turns out to take over two seconds. It is removed when
// the work is done. Drawn by the working thread between its steps: a drawing thread would disturb what is measured.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double fraction, const std::string& note = "");
  void clear();  // before a line is printed; the next update draws again

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

// "1.23 ms", "61.5 us", "12.3 s": three digits.
std::string seconds_text(double seconds);
std::string bytes_text(double bytes);  // "512 B", "73.5 MiB"
std::string count_text(double count);  // "19.3 M", "1.12 G"

}  // namespace wtconv::tool
