// Floats -> groups of 32 with a scale: how weights are rounded at load.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "groups.h"

namespace octavo {
namespace {

constexpr float kMostNibble = 15;
constexpr int kMostFits = 2;

// To nearest, ties to even, for 0 .. 2^22: in loops that compilers vectorise for any machine.
inline float rounded(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

// value = scale * q + minimum, both as 16 bits keep them.
struct Line {
  float scale, minimum;
};

Line kept(float scale, float minimum) { return {f16_to_f32(f32_to_f16(scale)), f16_to_f32(f32_to_f16(minimum))}; }

using Codes = std::array<float, kGroup>;

Codes codes_on(const Line& line, const float* x) {
  const float inverse = line.scale != 0.0f ? 1.0f / line.scale : 0.0f;
  Codes q;
  for (int i = 0; i < kGroup; ++i)
    q[static_cast<size_t>(i)] = rounded(std::min(std::max((x[i] - line.minimum) * inverse, 0.0f), kMostNibble));
  return q;
}

// The sum of f(0) .. f(kGroup - 1), in lanes of eight that a compiler may add side by side.
template <class F>
inline float sum_of(F f) {
  float lanes[8] = {};
  for (int i = 0; i < kGroup; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += f(static_cast<size_t>(i + lane));
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

void check_finite(const float* x) {
  if (sum_of([&](size_t i) { return x[i] * 0.0f; }) != 0.0f)
    throw std::invalid_argument("a weight is not a finite number: the file is damaged");
}

float error_of(const Line& line, const Codes& q, const float* x) {
  return sum_of([&](size_t i) {
    const float off = line.scale * q[i] + line.minimum - x[i];
    return off * off;
  });
}

// The line with the least squared error for these codes; the same line where they do not say.
Line fitted(const Codes& q, const float* x, const Line& line) {
  const float sum_q = sum_of([&](size_t i) { return q[i]; }), sum_qq = sum_of([&](size_t i) { return q[i] * q[i]; });
  const float sum_x = sum_of([&](size_t i) { return x[i]; }), sum_qx = sum_of([&](size_t i) { return q[i] * x[i]; });
  const float spread = kGroup * sum_qq - sum_q * sum_q;
  if (spread <= 0) return line;
  const float scale = (kGroup * sum_qx - sum_q * sum_x) / spread;
  return kept(scale, (sum_x - scale * sum_q) / kGroup);
}

}  // namespace

Group rounded_to_bytes(const float* x) {
  check_finite(x);
  Group g{};
  float largest = 0;
  for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(x[i]));
  g.scale = largest / 127.0f;
  g.zero = 128;
  for (int i = 0; i < kGroup; ++i)
    g.q[i] = static_cast<uint8_t>(
        128 + (g.scale > 0 ? std::clamp(static_cast<int>(std::lrintf(x[i] / g.scale)), -127, 127) : 0));
  return g;
}

// Lines to begin with: from the least to the largest number, as Q4_1 has them, or somewhat shorter; and around zero,
// with the largest number at the end, as Q4_0 has them. Of each, and of what it becomes when it is fitted to its codes,
// the best; of equals the first, so that what was Q4_1 is that again.
Group rounded_to_nibbles(const float* x) {
  check_finite(x);
  const auto [low, high] = std::minmax_element(x, x + kGroup);
  const float span = *high - *low, extreme = -*low > *high ? *low : *high;
  const Line lines[] = {kept(span / kMostNibble, *low), kept(span * 0.88f / kMostNibble, *low + span * 0.06f),
                        kept(-extreme / 8, extreme)};
  Line best = lines[0];
  Codes best_codes = codes_on(best, x);
  float least = error_of(best, best_codes, x);
  for (Line line : lines)
    for (int fits = 0; fits <= kMostFits; ++fits) {
      const Codes q = codes_on(line, x);
      const float error = error_of(line, q, x);
      if (error < least) {
        best = line;
        best_codes = q;
        least = error;
      }
      line = fitted(q, x, line);
    }
  Group g{};
  g.scale = best.scale;
  g.minimum = best.minimum;
  for (int i = 0; i < kGroup; ++i) g.q[i] = static_cast<uint8_t>(best_codes[static_cast<size_t>(i)]);
  return g;
}

}  // namespace octavo
