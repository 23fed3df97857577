// Sampling: from one row of logits to a token, and a token's place in the distribution. Plain data; no ISA code here.
//
// The algorithm is written down in src/octavo/backends/reference/sampling.py, which is the oracle for this one.
// Everything is reentrant: all memory is the caller's, and a result depends on the logits and the spec alone.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

enum class SampleStatus : int32_t {
  ok = 0,
  not_finite = 1,       // a logit is NaN or infinite
  nothing_allowed = 2,  // every token is banned, or outside the allowed ones
  bad_token = 3,        // an id in the spec is outside the vocabulary
};

// A flat view of core.plan.Sample. Borrowed pointers; a null pointer goes with a count of 0.
struct SampleSpec {
  double temperature = 0;  // 0: arg-max
  double top_p = 1;        // >= 1: off
  double typical_p = 1;    // >= 1: off
  double min_p = 0;        // 0: off
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  int32_t top_k = 0;              // 0: off
  int32_t num_alternatives = -1;  // -1: neither logprob, rank nor alternatives are computed
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t index = 0;
  const int32_t* bias_ids = nullptr;  // distinct
  const float* bias_values = nullptr;
  int32_t num_bias = 0;
  const int32_t* allowed = nullptr;
  int32_t num_allowed = -1;  // -1: all of the vocabulary
  const int32_t* banned = nullptr;
  int32_t num_banned = 0;
  const int32_t* prompt = nullptr;  // may repeat; read only where repetition_penalty is not 1
  int32_t num_prompt = 0;
  const int32_t* generated = nullptr;
  int32_t num_generated = 0;
  const uint8_t* mask = nullptr;  // a bit for each token, the lowest of each byte first: may it come? null: all may
};

// Where does `target` stand in the raw distribution?
struct ScoreSpec {
  int32_t target = 0;
  int32_t num_alternatives = 0;
};

struct Scored {
  int32_t token;
  int32_t rank;  // 1: the most likely; 0: not asked for
  float logprob;
  SampleStatus status;
};

struct Alternative {
  int32_t token;
  float logprob;
};

// Working memory of one thread: `bytes` >= sample_scratch_bytes(vocab), aligned to 64.
struct SampleScratch {
  void* memory;
  size_t bytes;
};

size_t sample_scratch_bytes(int vocab);
int sample_chunks(int vocab);  // how many maxima a row of logits has

// The scratch, divided. Float and token arrays have room for a whole chunk past `vocab`.
inline constexpr int kSampleChunk = 64;  // tokens whose maximum and sum are kept
inline constexpr int kSampleBuckets = 2048;
struct SampleWorkspace {
  float* adjusted;         // [vocab] logits after bias, masks and penalties
  float* logits;           // [vocab] of candidates, in the order of their ids
  float* weights;          // [vocab] of candidates
  int32_t* tokens;         // [vocab] of candidates
  int32_t* places;         // [vocab] candidates in question; before that, counts of tokens seen
  float *maxima, *sums;    // [chunks] of `adjusted`; of what is drawn from
  int32_t* bucket_counts;  // [kSampleBuckets]
  double* bucket_weights;  // [kSampleBuckets]
};

SampleWorkspace divide_sample_scratch(const SampleScratch& scratch, int vocab);

// One step's samples and targets in flat memory, as backends/cpu/sampling.py packs them. Jobs ascend by `row`.
struct SampleJob {
  // The part that is the same for all draws of a SamplingParams.
  double temperature, top_p, typical_p, min_p;
  float presence_penalty, frequency_penalty, repetition_penalty;
  int32_t top_k;
  int32_t num_alternatives;
  int32_t num_bias;
  int32_t num_allowed;  // -1: all
  // The part of this draw.
  int32_t target;  // >= 0: score this token; -1: draw one
  uint64_t seed;
  uint32_t choice, index;
  int32_t row;  // of the logits
  int32_t num_banned, num_prompt, num_generated;
  int64_t first_id;           // in `ids`: bias ids, allowed, banned, prompt, generated, one after the other
  int32_t first_value;        // in `values`: biases
  int32_t first_alternative;  // in `alternatives`
  int64_t first_mask;         // in `masks`: ceil(vocab / 8) bytes; -1: no mask
};
static_assert(sizeof(SampleJob) == 120);

struct SampleBatch {
  const SampleJob* jobs;
  int num_jobs;
  const int32_t* ids;
  int64_t num_ids;
  const float* values;
  int64_t num_values;
  const uint8_t* masks;
  int64_t num_mask_bytes;
  Scored* scored;  // [num_jobs]
  Alternative* alternatives;
  int64_t num_alternatives;
};

// Null where every job stays inside the arrays and inside `num_rows` x `vocab`, and rows ascend; else what is wrong.
// Call it once, before any job runs.
const char* sample_batch_fault(const SampleBatch& batch, int num_rows, int vocab);

// Runs job `job` on its row of logits. Jobs may run in any order, on several threads, each with its own scratch.
struct Kernels;
void run_sample_job(const Kernels& kernels, const float* logits, const float* maxima, int vocab,
                    const SampleBatch& batch, int job, SampleScratch& scratch);

}  // namespace octavo
