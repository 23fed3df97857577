#include "octavo/limits.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "octavo/clock.h"
#include "octavo/formats.h"

namespace octavo {
namespace {

constexpr size_t kTileBytes = size_t{1} << 20;
constexpr int kRounds = 10000, kTilesPerThread = 16;

// The most that a pass of `amount` got done in a second.
template <class Pass>
double best_rate(double seconds_in_all, double amount, const Pass& pass) {
  const double end = seconds() + seconds_in_all;
  double best = 0;
  for (int passes = 0; passes < 2 || seconds() < end; ++passes) {
    const double began = seconds();
    pass();
    best = std::max(best, amount / (seconds() - began));
  }
  return best;
}

}  // namespace

double read_bandwidth(const Kernels& kernels, Pool& pool, size_t num_bytes, double seconds_in_all) {
  const size_t tiles = std::max<size_t>(1, num_bytes / kTileBytes);
  Arena arena;
  uint8_t* data = arena.take(tiles * kTileBytes);
  std::vector<float> sums(tiles);
  const auto tile = [&](int i) { return data + kTileBytes * static_cast<size_t>(i); };
  // Written first: memory that never was is one page of zeros, which stays in a cache.
  pool.each(static_cast<int>(tiles), [&](int i, int) { std::memset(tile(i), 1, kTileBytes); });
  return best_rate(seconds_in_all, static_cast<double>(tiles * kTileBytes), [&] {
    pool.each(static_cast<int>(tiles),
              [&](int i, int) { sums[static_cast<size_t>(i)] = kernels.read_all(tile(i), kTileBytes); });
  });
}

double peak_operations(const Kernels& kernels, Pool& pool, WeightKind kind, double seconds_in_all) {
  const int tiles = kTilesPerThread * pool.num_threads();
  float result;
  const double amount = kernels.spin_dots(kind, 1, &result) * kRounds * tiles;
  std::vector<float> results(static_cast<size_t>(tiles));
  return best_rate(seconds_in_all, amount, [&] {
    pool.each(tiles, [&](int i, int) { kernels.spin_dots(kind, kRounds, &results[static_cast<size_t>(i)]); });
  });
}

}  // namespace octavo
