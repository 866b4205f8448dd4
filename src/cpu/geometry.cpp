#include "cpu/geometry.hpp"

#include <algorithm>

namespace wtconv::cpu {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// What a thread holds should leave room in its L2 cache (1 to 2 MiB on current server cores, 512 KiB on older ones).
constexpr std::size_t cache_budget = std::size_t{1} << 20;
// Filtered bands of one group of rows, written and read again at once: they should stay in an L1 cache of 32 KiB or
// more beside the rows they come from.
constexpr std::int64_t group_budget = 32 << 10;
// Rows read at a time: enough to amortise the calls, few enough to be still in the L1 cache when they are analysed.
constexpr std::int64_t band_budget = 48 << 10;
// Enough tasks to keep many threads even, few enough that partial sums stay small. Fixed, so that the order of sums
// does not depend on the number of threads.
constexpr std::int64_t wanted_tasks = 64, wanted_tasks_with_sums = 16;

// Everything that follows from the assignment of lanes.
void derive(Geometry& g) {
  const Problem& p = g.problem;
  g.channel_groups = ceil_div(p.channels, g.lane_channels);
  g.batch_groups = ceil_div(p.batch, g.lane_batches);
  const std::int64_t align = g.strips > 1 ? std::int64_t{1} << p.levels : 1;
  const std::int64_t strip_width = round_up(ceil_div(p.width, g.strips), align);
  for (int l = 0; l <= p.levels; ++l) g.width[l] = ceil_div(strip_width, std::int64_t{1} << l);
  g.halo = std::max(1, p.kernel / 2);
  const std::int64_t row_bytes = g.width[0] * g.lanes * g.element_size;
  g.group_rows = static_cast<int>(std::clamp<std::int64_t>(group_budget / (2 * row_bytes), 2, 8) & ~std::int64_t{1});
  // Written rows should fill whole blocks of the transposition, and be no more than store buffers take without a stall.
  g.out_rows = 2;
  while (g.out_rows < 2 * g.group_rows && g.out_rows * g.width[0] % g.lanes && g.out_rows * g.width[0] < 8 * g.lanes) {
    g.out_rows += 2;
  }
  g.band_rows =
      std::min(round_up(std::clamp<std::int64_t>(band_budget / row_bytes, 1, 64), g.out_rows), round_up(p.height, 2));
  Geometry tall = g;  // of unlimited height: how far reading runs ahead
  tall.problem.height = std::int64_t{1} << 40;
  const std::int64_t end = std::int64_t{1} << 20, slack = std::int64_t{1} << p.levels;  // of an end that is not aligned
  const std::int64_t in_flight = g.band_rows + tall.rows_needed(end) - end + slack;
  for (int l = 0; l <= p.levels; ++l) {
    g.capacity[l] = std::min((in_flight >> l) + g.halo + 3, g.height(l));
  }
}

// Work per useful element: lanes and columns that hold nothing, and halos.
double waste(const Geometry& g) {
  const Problem& p = g.problem;
  const double planes = double(g.channel_groups * g.lane_channels) / double(p.channels) *
                        double(g.batch_groups * g.lane_batches) / double(std::max<std::int64_t>(p.batch, 1));
  const double columns = double(g.width[0] * g.strips) / double(p.width);
  const double halos = 1 + 0.1 * g.halo / double(g.width[0]);
  return planes * columns * (g.strips > 1 ? halos : 1);
}

}  // namespace

std::int64_t Geometry::rows_needed(std::int64_t end) const {
  std::int64_t rows = end + halo, made = end;
  for (int l = 1; l <= problem.levels; ++l) {
    made = ceil_div(made, 2) + group_rows_at(l) - 1;
    rows = std::max(rows, (made + halo) << l);
  }
  return std::min(rows, problem.height);
}

std::size_t Geometry::pyramid_bytes() const {
  std::int64_t vectors = 0;
  for (int l = 0; l <= problem.levels; ++l) vectors += (l == 0 ? 1 : 4) * capacity[l] * pitch(l);
  return static_cast<std::size_t>(vectors * lanes * element_size);
}

std::size_t Geometry::scratch_bytes(bool filters_wanted, bool sums_wanted) const {
  const std::int64_t vector = std::int64_t{lanes} * element_size;
  std::size_t bytes = pyramid_bytes() * (sums_wanted ? 2 : 1) + static_cast<std::size_t>(pitch(0) * vector);
  if (filters_wanted) {
    std::int64_t vectors = filters() * taps() + 1 + out_rows * width[0];
    for (int l = 0; l < problem.levels; ++l) vectors += synthesis_rows() * width[l];
    if (problem.levels > 0) vectors += 4 * group_rows * width[1];
    bytes += static_cast<std::size_t>(vectors * vector);
  }
  if (sums_wanted) {
    const std::int64_t sums = filters() * taps() + 1;
    bytes += static_cast<std::size_t>(sums * (vector + lanes * 8 + 8));
  }
  // Every buffer starts on its own cache lines: two pyramids of a ring per band, the rows of R, and a dozen others.
  const int buffers = 2 * filters() + problem.levels + 12;
  return bytes + static_cast<std::size_t>(128 * buffers);
}

double Geometry::reread() const {
  const double rows =
      double(segments - 1) * double((std::int64_t{halo} << problem.levels) + rows_needed(segment_rows) - segment_rows);
  return rows * double(problem.width) * double(problem.batch) * double(problem.channels);
}

Geometry make_geometry(const Problem& problem, int lanes, bool sums) {
  const std::int64_t wanted = sums ? wanted_tasks_with_sums : wanted_tasks;
  Geometry best;
  double best_cost = 0;
  for (int strips = 1; strips <= lanes; strips *= 2) {
    for (int channels = 1; channels * strips <= lanes; channels *= 2) {
      Geometry g;
      g.problem = problem;
      g.lanes = lanes;
      g.element_size = compute_type(problem.dtype) == DType::f64 ? 8 : 4;
      g.strips = strips;
      g.lane_channels = channels;
      g.lane_batches = lanes / strips / channels;
      derive(g);
      const double spill = double(g.scratch_bytes(true, false)) / double(cache_budget);
      // Twice the cache costs about half of the arithmetic again.
      const double cost = waste(g) * (spill > 1 ? 0.5 + 0.5 * spill : 1) + 1e-3 * (strips - 1) + 1e-4 * g.lane_batches;
      if (best_cost == 0 || cost < best_cost) {
        best = g;
        best_cost = cost;
      }
    }
  }
  Geometry& g = best;
  const std::int64_t align = std::int64_t{1} << problem.levels;
  g.chunks = std::clamp<std::int64_t>(ceil_div(wanted, g.channel_groups), 1, std::max<std::int64_t>(g.batch_groups, 1));
  // Few planes: cut them into segments of rows, as long as the halo that each reads again stays small.
  const std::int64_t halo_rows = std::int64_t{2 * g.halo + 1} << problem.levels;
  const std::int64_t most = std::max<std::int64_t>(1, problem.height / (4 * halo_rows));
  g.segments = std::clamp<std::int64_t>(wanted / (g.channel_groups * g.chunks), 1, most);
  g.segment_rows = round_up(ceil_div(problem.height, g.segments), std::max<std::int64_t>(align, 2));
  g.segments = ceil_div(problem.height, g.segment_rows);
  return g;
}

std::string describe(const Geometry& g) {
  const auto n = [](std::int64_t v) { return std::to_string(v); };
  return n(g.lanes) + " lanes hold " + n(g.lane_channels) + " channels x " + n(g.lane_batches) + " batch entries x " +
         n(g.strips) + " strips of " + n(g.width[0]) + " columns; " + n(g.tasks()) + " tasks (" + n(g.channel_groups) +
         " channel groups x " + n(g.chunks) + " batch chunks x " + n(g.segments) + " row segments); bands of " +
         n(g.band_rows) + " rows, " + n(g.capacity[0]) + " rows of x in flight";
}

}  // namespace wtconv::cpu
