// Sampling for one instruction set. Included once in each ISA's kernels.cpp, inside its namespace.
//
// The definition is src/octavo/backends/reference/sampling.py. How it is met here without a sort:
//
//   row     |......chunk 0......|......chunk 1......| ...        chunks of 64 tokens
//   maxima      one for each chunk: the arg-max, and a floor under the k-th best token (the k-th best maximum)
//   sums        one for each chunk: weights exp((l - peak) / temperature); the inverse CDF walks chunks, then one chunk
//
// Only tokens above a floor become candidates; a radix select finds the exact last one that top_k or top_p keeps.
//
// Arithmetic: float32 without fused multiply-add, in a fixed order, so all instruction sets give the same bits.
//   exp          relative error < 2^-23 (own polynomial; 0 below -87.3)
//   one weight   relative error < 2^-23 * (1 + |l - peak| / temperature)
//   sums         a tree of six additions in a chunk, then float64: relative error < 6 * 2^-24 more
//   logprobs     absolute error < 1e-6 + 2^-24 * |logprob|
namespace sampling {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kParts = kSampleChunk / kLanes;
constexpr int kColumns = 16;  // partial sums of a chunk, whatever the width of a register
constexpr int kColumnParts = kColumns / kLanes;
constexpr float kLargest = 3.4028234663852886e38f;
constexpr float kInfinity = __builtin_huge_valf();
constexpr float kCoolest = -87.3f;  // exp of less counts as 0

typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef float LanesAt __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));

struct alignas(64) Chunk {
  Lanes part[kParts];
};

// Chunk `p[0..count)`; lanes past the end hold `fill`.
static void load_chunk(const float* p, int count, float fill, Chunk* chunk) {
  if (count == kSampleChunk) {
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) chunk->part[i] = *reinterpret_cast<const LanesAt*>(p + i * kLanes);
    return;
  }
  alignas(64) float lanes[kSampleChunk];
  for (int i = 0; i < kSampleChunk; ++i) lanes[i] = i < count ? p[i] : fill;
  __builtin_memcpy(chunk, lanes, sizeof lanes);
}

static int chunk_count(int vocab) { return (vocab + kSampleChunk - 1) / kSampleChunk; }

static int chunk_length(int vocab, int chunk) {
  const int left = vocab - chunk * kSampleChunk;
  return left < kSampleChunk ? left : kSampleChunk;
}

// The chunk as 4 rows of 16 columns: rows in pairs, then a tree of columns: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
static float chunk_sum(const Chunk& chunk) {
  alignas(64) float sum[kColumns];
#pragma GCC unroll 16
  for (int i = 0; i < kColumnParts; ++i) {
    const Lanes* row = chunk.part + i;
    const Lanes rows = (row[0] + row[kColumnParts]) + (row[2 * kColumnParts] + row[3 * kColumnParts]);
    __builtin_memcpy(sum + i * kLanes, &rows, sizeof rows);
  }
#pragma GCC unroll 16
  for (int half = kColumns / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  return sum[0];
}

// maxima[c] = the highest logit of chunk c. Where `poison` is given, what is not finite makes it NaN.
static void find_maxima(const float* logits, int count, float* maxima, f32* poison) {
  for (int c = 0; c < chunk_count(count); ++c) {
    alignas(64) float padded[kSampleChunk];
    const float* p = logits + c * kSampleChunk;
    const int length = chunk_length(count, c);
    if (length < kSampleChunk) {
      for (int i = 0; i < kSampleChunk; ++i) padded[i] = p[i < length ? i : 0];
      p = padded;
    }
    f32 best = load(p);
    for (int i = 16; i < kSampleChunk; i += 16) best = max(best, load(p + i));
    for (int i = 0; poison && i < kSampleChunk; i += 16) *poison = fma(load(p + i), zero(), *poison);
    maxima[c] = reduce_max(best);
  }
}

static float highest(const float* values, int count) {
  f32 lanes = broadcast(values[0]);
  int i = 0;
  for (; i + 16 <= count; i += 16) lanes = max(lanes, load(values + i));
  float best = reduce_max(lanes);
  for (; i < count; ++i) best = values[i] > best ? values[i] : best;
  return best;
}

static bool any_nan(const float* values, int count) {
  f32 poison = zero();
  int i = 0;
  for (; i + 16 <= count; i += 16) poison = fma(load(values + i), zero(), poison);
  float rest = reduce_add(poison);
  for (; i < count; ++i) rest += values[i] * 0.0f;
  return rest != 0;
}

// The lowest id whose logit is `peak`, which is the highest.
static int first_at(const float* logits, int vocab, const float* maxima, float peak) {
  int token = 0;
  while (maxima[token] != peak) ++token;
  token *= kSampleChunk;
  while (token < vocab - 1 && logits[token] != peak) ++token;
  return token;
}

// e^x for x <= 0. x = n * log 2 + r; e^r = 1 + r + r^2 * p(r), p fitted on |r| <= log(2) / 2; 2^n by its bits.
static void exp_lanes(Lanes* value) {
  const Lanes x = *value;
  const Ints tiny = x < kCoolest;
  const Lanes clamped = tiny ? Lanes{} + kCoolest : x;
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Lanes shifted = clamped * 1.44269504088896341f + round;
  const Lanes n = shifted - round;
  const Lanes r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  Lanes p = r * 0x1.6d43b4p-10f + 0x1.120be8p-7f;
  p = p * r + 0x1.5554e8p-5f;
  p = p * r + 0x1.5554dcp-3f;
  p = p * r + 0.5f;
  const Lanes mantissa = (p * (r * r) + r) + 1.0f;
  const Ints power = (__builtin_bit_cast(Ints, shifted) << 23) + 0x3f800000;
  const Lanes scaled = mantissa * __builtin_bit_cast(Lanes, power);
  *value = tiny ? Lanes{} : scaled;
}

// Natural logarithm of a normal x > 0: log(2^e * m) with m around 1, by the series of atanh. Error < 2^-50 * (1 + |log
// x|).
static double log_of(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m;
  __builtin_memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 0;
  for (int k = 23; k > 0; k -= 2) series = series * square + 1.0 / k;
  return exponent * 0.6931471805599453 + 2 * s * series;
}

// How logits become weights: w = exp((l - peak) * inverse), or 0 where that is below `least`.
struct Scale {
  float peak;
  float inverse;  // of the temperature
  float least;
};

// Turns a chunk of logits into weights and returns their sum.
static float weigh_chunk(const Scale& scale, Chunk* chunk) {
#pragma GCC unroll 16
  for (int i = 0; i < kParts; ++i) {
    Lanes& w = chunk->part[i];
    w = (w - scale.peak) * scale.inverse;
    exp_lanes(&w);
    w = w >= scale.least ? w : Lanes{};
  }
  return chunk_sum(*chunk);
}

// sums[c] = the weight of chunk c; returns the weight of the row.
static double weigh_row(const float* logits, int vocab, const Scale& scale, float* sums) {
  double total = 0;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    Chunk chunk;
    load_chunk(logits + c * kSampleChunk, chunk_length(vocab, c), -kInfinity, &chunk);
    sums[c] = weigh_chunk(scale, &chunk);
    total += sums[c];
  }
  return total;
}

// The first index at which the running sum is above `goal`; where rounding leaves none, the last with any weight.
static int crossing(const float* weights, int count, double goal, double sum) {
  int last = 0;
  for (int i = 0; i < count; ++i) {
    if (weights[i] == 0) continue;
    last = i;
    sum += weights[i];
    if (sum > goal) break;
  }
  return last;
}

// Inverse CDF over the whole row.
static int draw_from_row(const float* logits, int vocab, const Scale& scale, double u, float* sums) {
  const double goal = u * weigh_row(logits, vocab, scale, sums);
  const int c = crossing(sums, chunk_count(vocab), goal, 0);
  double before = 0;
  for (int i = 0; i < c; ++i) before += sums[i];
  Chunk chunk;
  const int length = chunk_length(vocab, c);
  load_chunk(logits + c * kSampleChunk, length, -kInfinity, &chunk);
  weigh_chunk(scale, &chunk);
  float weights[kSampleChunk];
  __builtin_memcpy(weights, &chunk, sizeof weights);
  return c * kSampleChunk + crossing(weights, length, goal, before);
}

#include "candidates.inl"

// Philox4x32-10 (Salmon et al., SC 2011): the number in [0, 1) of (seed, choice, index), a multiple of 2^-24.
static double uniform(uint64_t seed, uint32_t choice, uint32_t index) {
  uint32_t counter[4] = {index, choice, 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t right = uint64_t{0xCD9E8D57u} * counter[2];
    counter[0] = static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<uint32_t>(right);
    counter[2] = static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<uint32_t>(left);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return (counter[0] >> 8) * 0x1p-24;
}

// A floor below which all tokens together weigh less than half of what top_p leaves out, so that it cuts above.
static float nucleus_floor(const SampleSpec& spec, int vocab, float peak, double total) {
  const double share = 0.5 * (1 - spec.top_p) * total / vocab;
  const double floor = peak + spec.temperature * log_of(share);
  return floor > -kLargest ? static_cast<float>(floor) : -kLargest;
}

static void keep_likely(float least, Candidates* c) {
  int kept = 0;
  for (int i = 0; i < c->count; ++i) {
    const float weight = c->weights[i];
    c->logits[kept] = c->logits[i];
    c->weights[kept] = weight;
    c->tokens[kept] = c->tokens[i];
    kept += weight >= least;
  }
  c->count = kept;
}

// Keeps the candidates whose surprise is nearest to the expected one: with x = (logit - peak) / temperature both differ
// from -x and from the mean of -x by the same constant, so that |x - mean| is the distance.
static void keep_typical(double peak, double temperature, double typical_p, Candidates* c, SampleWorkspace& work) {
  double total = 0, mean = 0;
  for (int i = 0; i < c->count; ++i) {
    total += c->weights[i];
    if (c->weights[i] > 0) mean += c->weights[i] * ((c->logits[i] - peak) / temperature);
  }
  mean /= total;
  for (int i = 0; i < c->count; ++i) {
    const double distance = (c->logits[i] - peak) / temperature - mean;
    c->logits[i] = static_cast<float>(distance < 0 ? distance : -distance);
  }
  keep(find_cut(*c, Reach{INT64_MAX, typical_p * total}, work), c);
}

static int draw_token(const float* logits, int vocab, const float* maxima, const SampleSpec& spec, float peak,
                      SampleWorkspace& work) {
  const double coolest = 0x1p-100;
  const double temperature = spec.temperature > coolest ? spec.temperature : coolest;
  Scale scale{peak, static_cast<float>(1 / temperature), 0};
  const float least = static_cast<float>(spec.min_p);
  const double u = uniform(spec.seed, spec.choice, spec.index);
  const bool counted = spec.top_k > 0 && spec.top_k < vocab;
  const bool typical = spec.typical_p < 1;
  if (!counted && spec.top_p >= 1 && !typical) {
    scale.least = least;
    return draw_from_row(logits, vocab, scale, u, work.sums);
  }
  Candidates c{work.logits, work.weights, work.tokens, 0};
  double total;
  if (counted) {
    c = best_tokens(logits, vocab, maxima, spec.top_k, work);
    total = weigh_candidates(scale, &c);
  } else {
    total = weigh_row(logits, vocab, scale, work.sums);
    gather(logits, vocab, maxima, spec.top_p < 1 ? nucleus_floor(spec, vocab, peak, total) : -kLargest, &c);
    weigh_candidates(scale, &c);
  }
  if (spec.top_p < 1) keep(find_cut(c, Reach{INT64_MAX, spec.top_p * total}, work), &c);
  if (typical) {
    keep_likely(least, &c);
    keep_typical(peak, temperature, spec.typical_p, &c, work);
  }
  double kept = 0;
  for (int i = 0; i < c.count; ++i) kept += c.weights[i] = c.weights[i] >= least ? c.weights[i] : 0;
  return c.tokens[crossing(c.weights, c.count, u * kept, 0)];
}

static bool adjusts(const SampleSpec& spec) {
  return spec.mask || spec.num_bias || spec.num_banned || spec.num_allowed >= 0 || spec.repetition_penalty != 1 ||
         spec.presence_penalty != 0 || spec.frequency_penalty != 0;
}

static bool inside(const int32_t* ids, int count, int vocab) {
  bool ok = true;
  for (int i = 0; i < count; ++i) ok &= ids[i] >= 0 && ids[i] < vocab;
  return ok;
}

static float clamp(float x) { return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x; }

constexpr int32_t kInPrompt = 1 << 30;

static float penalised(float logit, int32_t seen, const SampleSpec& spec) {
  if (logit == -kInfinity) return logit;
  if (spec.repetition_penalty != 1)
    logit = clamp(logit > 0 ? logit / spec.repetition_penalty : logit * spec.repetition_penalty);
  const int32_t count = seen & ~kInPrompt;
  if (count) logit = clamp((logit - spec.frequency_penalty * static_cast<float>(count)) - spec.presence_penalty);
  return logit;
}

static void penalise(const SampleSpec& spec, int vocab, float* logits, int32_t* seen) {
  __builtin_memset(seen, 0, vocab * sizeof(int32_t));
  const int num_prompt = spec.repetition_penalty != 1 ? spec.num_prompt : 0;
  for (int i = 0; i < spec.num_generated; ++i) ++seen[spec.generated[i]];
  for (int i = 0; i < num_prompt; ++i) seen[spec.prompt[i]] |= kInPrompt;
  for (int i = 0; i < spec.num_generated + num_prompt; ++i) {
    const int32_t token = i < num_prompt ? spec.prompt[i] : spec.generated[i - num_prompt];
    if (seen[token] == 0) continue;
    logits[token] = penalised(logits[token], seen[token], spec);
    seen[token] = 0;
  }
}

// A grammar allows nearly all of the vocabulary or nearly none of it: most bytes are all ones or all zeros.
static void apply_mask(const uint8_t* mask, int vocab, float* row) {
  for (int first = 0; first < vocab; first += 8) {
    const int bits = mask[first / 8], end = first + 8 < vocab ? first + 8 : vocab;
    if (bits == 0xff) continue;
    for (int i = first; i < end; ++i) row[i] = bits >> (i - first) & 1 ? row[i] : -kInfinity;
  }
}

// Bias, masks and penalties: `logits` -> work.adjusted and work.maxima.
static SampleStatus adjust(const float* logits, int vocab, const SampleSpec& spec, SampleWorkspace& work) {
  if (!inside(spec.bias_ids, spec.num_bias, vocab) || !inside(spec.allowed, spec.num_allowed, vocab) ||
      !inside(spec.banned, spec.num_banned, vocab) || !inside(spec.prompt, spec.num_prompt, vocab) ||
      !inside(spec.generated, spec.num_generated, vocab))
    return SampleStatus::bad_token;
  float* row = work.adjusted;
  __builtin_memcpy(row, logits, vocab * sizeof(float));
  for (int i = 0; i < spec.num_bias; ++i) row[spec.bias_ids[i]] += spec.bias_values[i];
  if (spec.num_allowed >= 0) {
    __builtin_memset(work.places, 0, vocab * sizeof(int32_t));
    for (int i = 0; i < spec.num_allowed; ++i) work.places[spec.allowed[i]] = 1;
    for (int i = 0; i < vocab; ++i) row[i] = work.places[i] ? row[i] : -kInfinity;
  }
  if (spec.mask) apply_mask(spec.mask, vocab, row);
  for (int i = 0; i < spec.num_banned; ++i) row[spec.banned[i]] = -kInfinity;
  if (spec.repetition_penalty != 1 || spec.presence_penalty != 0 || spec.frequency_penalty != 0)
    penalise(spec, vocab, row, work.places);
  find_maxima(row, vocab, work.maxima, nullptr);
  return SampleStatus::ok;
}

// One more than the tokens with a higher logit.
static int rank_of(const float* logits, int vocab, const float* maxima, float logit) {
  Ints higher = {};
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (maxima[c] <= logit) continue;
    Chunk chunk;
    load_chunk(logits + c * kSampleChunk, chunk_length(vocab, c), -kInfinity, &chunk);
#pragma GCC unroll 16
    for (int i = 0; i < kParts; ++i) higher -= chunk.part[i] > logit;
  }
  int rank = 1;
  for (int i = 0; i < kLanes; ++i) rank += higher[i];
  return rank;
}

// Best first, lower ids first among equals; a handful, so by insertion.
static void sort_best_first(const Candidates& c, Alternative* sorted) {
  for (int i = 0; i < c.count; ++i) {
    int at = i;
    for (; at > 0 && sorted[at - 1].logprob < c.logits[i]; --at) sorted[at] = sorted[at - 1];
    sorted[at] = Alternative{c.tokens[i], c.logits[i]};
  }
}

// `token`'s place in the raw distribution.
static void describe(const float* logits, int vocab, const float* maxima, int token, int num_alternatives,
                     SampleWorkspace& work, Scored* scored, Alternative* alternatives) {
  const double peak = highest(maxima, chunk_count(vocab));
  const double log_total = log_of(weigh_row(logits, vocab, Scale{static_cast<float>(peak), 1, 0}, work.sums));
  const auto logprob = [&](float logit) { return static_cast<float>((logit - peak) - log_total); };
  scored->logprob = logprob(logits[token]);
  scored->rank = rank_of(logits, vocab, maxima, logits[token]);
  if (num_alternatives <= 0) return;
  const int count = num_alternatives < vocab ? num_alternatives : vocab;
  sort_best_first(best_tokens(logits, vocab, maxima, count, work), alternatives);
  for (int i = 0; i < count; ++i) alternatives[i].logprob = logprob(alternatives[i].logprob);
  for (int i = count; i < num_alternatives; ++i) alternatives[i] = Alternative{-1, 0};
}

static SampleStatus fail(SampleStatus status, Scored* scored) {
  *scored = Scored{-1, 0, 0, status};
  return status;
}

}  // namespace sampling

// The maxima of `count` logits, in whole chunks but for the end of the vocabulary; NaN in the first of them where a
// logit is not finite.
static void chunk_maxima(const float* logits, int count, float* maxima) {
  f32 poison = zero();
  sampling::find_maxima(logits, count, maxima, &poison);
  if (reduce_add(poison) != 0) maxima[0] = __builtin_nanf("");
}

// Draws one token. `alternatives` has room for spec.num_alternatives.
static SampleStatus sample(const float* logits, const float* maxima, int vocab, const SampleSpec& spec,
                           SampleScratch& scratch, Scored* drawn, Alternative* alternatives) {
  using namespace sampling;
  if (any_nan(maxima, chunk_count(vocab))) return fail(SampleStatus::not_finite, drawn);
  SampleWorkspace work = divide_sample_scratch(scratch, vocab);
  const float *row = logits, *row_maxima = maxima;
  if (adjusts(spec)) {
    const SampleStatus status = adjust(logits, vocab, spec, work);
    if (status != SampleStatus::ok) return fail(status, drawn);
    row = work.adjusted;
    row_maxima = work.maxima;
  }
  const float peak = highest(row_maxima, chunk_count(vocab));
  if (peak == -kInfinity) return fail(SampleStatus::nothing_allowed, drawn);
  const int token = spec.temperature == 0 ? first_at(row, vocab, row_maxima, peak)
                                          : draw_token(row, vocab, row_maxima, spec, peak, work);
  *drawn = Scored{token, 0, 0, SampleStatus::ok};
  if (spec.num_alternatives >= 0)
    describe(logits, vocab, maxima, token, spec.num_alternatives, work, drawn, alternatives);
  return SampleStatus::ok;
}

// Scores spec.target. `alternatives` has room for spec.num_alternatives.
static SampleStatus score(const float* logits, const float* maxima, int vocab, const ScoreSpec& spec,
                          SampleScratch& scratch, Scored* scored, Alternative* alternatives) {
  using namespace sampling;
  SampleWorkspace work = divide_sample_scratch(scratch, vocab);
  if (spec.target < 0 || spec.target >= vocab) return fail(SampleStatus::bad_token, scored);
  if (any_nan(maxima, chunk_count(vocab))) return fail(SampleStatus::not_finite, scored);
  *scored = Scored{spec.target, 0, 0, SampleStatus::ok};
  describe(logits, vocab, maxima, spec.target, spec.num_alternatives, work, scored, alternatives);
  return SampleStatus::ok;
}
