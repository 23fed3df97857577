// Candidates of a draw, and which of them are kept: a radix select instead of a sort. Included once, in sample.inl.

// Tokens that may be kept, in the order of their ids.
struct Candidates {
  float* logits;
  float* weights;
  int32_t* tokens;
  int count;
};

// All tokens with a finite logit of at least `floor`; their weights are left open.
static void gather(const float* logits, int vocab, const float* maxima, float floor, Candidates* found) {
  floor = floor > -kLargest ? floor : -kLargest;
  int count = 0;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (!(maxima[c] >= floor)) continue;
    const int first = c * kSampleChunk, end = first + chunk_length(vocab, c);
    for (int token = first; token < end; ++token) {
      found->logits[count] = logits[token];
      found->tokens[count] = token;
      count += logits[token] >= floor;
    }
  }
  found->count = count;
}

// Sets the candidates' weights and returns their sum.
static double weigh_candidates(const Scale& scale, Candidates* c) {
  double total = 0;
  for (int first = 0; first < c->count; first += kSampleChunk) {
    Chunk chunk;
    load_chunk(c->logits + first, chunk_length(c->count, first / kSampleChunk), -kInfinity, &chunk);
    total += weigh_chunk(scale, &chunk);
    __builtin_memcpy(c->weights + first, &chunk, sizeof chunk);
  }
  return total;
}

// Unsigned integers in the order of the floats; both zeros are equal.
static uint32_t order_of(float x) {
  x += 0.0f;
  int32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return static_cast<uint32_t>(bits) ^ (static_cast<uint32_t>(bits >> 31) | 0x80000000u);
}

static float float_at(uint32_t order) {
  const uint32_t bits = order ^ (order & 0x80000000u ? 0x80000000u : 0xffffffffu);
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// The last token that is kept, in the order (higher logit, then lower id).
struct Cut {
  uint32_t order;
  int32_t token;
};

static bool keeps(const Cut& cut, float logit, int32_t token) {
  const uint32_t order = order_of(logit);
  return order > cut.order || (order == cut.order && token <= cut.token);
}

// What the kept tokens reach: a number of them, or a weight, whichever comes first.
struct Reach {
  int64_t count;
  double weight;

  bool met(int64_t kept, double weighed) const { return kept >= count || weighed >= weight; }
};

// One digit of a radix select: the bucket in which `reach` is met, and what lies above it.
struct Digit {
  int shift, bits;

  uint32_t of(float logit) const { return order_of(logit) >> shift & ((1u << bits) - 1); }
};

static uint32_t find_bucket(const Candidates& c, int count, Digit digit, const Reach& reach, SampleWorkspace& work,
                            int64_t* kept, double* weighed) {
  const int buckets = 1 << digit.bits;
  __builtin_memset(work.bucket_counts, 0, buckets * sizeof(int32_t));
  __builtin_memset(work.bucket_weights, 0, buckets * sizeof(double));
  for (int i = 0; i < count; ++i) {
    const uint32_t bucket = digit.of(c.logits[work.places[i]]);
    ++work.bucket_counts[bucket];
    work.bucket_weights[bucket] += c.weights[work.places[i]];
  }
  int found = 0;
  int64_t kept_above = *kept;
  double weighed_above = *weighed;
  for (int bucket = buckets - 1; bucket >= 0; --bucket) {
    if (work.bucket_counts[bucket] == 0) continue;
    found = bucket;
    *kept = kept_above;
    *weighed = weighed_above;
    kept_above += work.bucket_counts[bucket];
    weighed_above += work.bucket_weights[bucket];
    if (reach.met(kept_above, weighed_above)) break;
  }
  return static_cast<uint32_t>(found);
}

// The shortest run of candidates, best first, that meets `reach` (all of them where none does). count > 0.
static Cut find_cut(const Candidates& c, const Reach& reach, SampleWorkspace& work) {
  const Digit digits[] = {{21, 11}, {10, 11}, {0, 10}};
  int count = c.count;
  for (int i = 0; i < count; ++i) work.places[i] = i;
  int64_t kept = 0;
  double weighed = 0;
  uint32_t order = 0;
  for (const Digit& digit : digits) {
    const uint32_t bucket = find_bucket(c, count, digit, reach, work, &kept, &weighed);
    order |= bucket << digit.shift;
    int left = 0;
    for (int i = 0; i < count; ++i) {
      const int32_t place = work.places[i];
      work.places[left] = place;
      left += digit.of(c.logits[place]) == bucket;
    }
    count = left;
  }
  int last = 0;  // those left are equal, lower ids first
  for (int i = 0; i < count; ++i) {
    last = i;
    if (reach.met(++kept, weighed += c.weights[work.places[i]])) break;
  }
  return Cut{order, c.tokens[work.places[last]]};
}

static void keep(const Cut& cut, Candidates* c) {
  int kept = 0;
  for (int i = 0; i < c->count; ++i) {
    const float logit = c->logits[i];
    const int32_t token = c->tokens[i];
    c->logits[kept] = logit;
    c->weights[kept] = c->weights[i];
    c->tokens[kept] = token;
    kept += keeps(cut, logit, token);
  }
  c->count = kept;
}

// The `count` best tokens of a row, in the order of their ids; fewer where fewer are finite.
static Candidates best_tokens(const float* logits, int vocab, const float* maxima, int count, SampleWorkspace& work) {
  Candidates c{work.logits, work.weights, work.tokens, chunk_count(vocab)};
  const Reach reach{count, __builtin_huge_val()};
  float floor = -kInfinity;
  if (count <= c.count) {
    for (int i = 0; i < c.count; ++i) {
      c.logits[i] = maxima[i];
      c.tokens[i] = i;
      c.weights[i] = 0;
    }
    floor = float_at(find_cut(c, reach, work).order);
  }
  gather(logits, vocab, maxima, floor, &c);
  __builtin_memset(c.weights, 0, c.count * sizeof(float));
  if (c.count > count) keep(find_cut(c, reach, work), &c);
  return c;
}
