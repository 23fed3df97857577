// The packed samples and targets of one step: checked once, then run job by job. No ISA code.
#include "octavo/kernels.h"
#include "octavo/sample.h"

namespace octavo {

namespace {

constexpr size_t kLine = 64;

size_t padded(size_t count) { return (count + 2 * kSampleChunk - 1) / kSampleChunk * kSampleChunk; }

size_t chunks(int vocab) { return padded((vocab + kSampleChunk - 1) / kSampleChunk); }

bool fits(int64_t first, int64_t count, int64_t size) { return first >= 0 && count >= 0 && first <= size - count; }

int64_t allowed_count(const SampleJob& job) { return job.num_allowed < 0 ? 0 : job.num_allowed; }

int64_t mask_bytes(int vocab) { return (int64_t{vocab} + 7) / 8; }

const char* job_fault(const SampleBatch& batch, const SampleJob& job, int num_rows, int vocab) {
  if (job.row < 0 || job.row >= num_rows) return "a sampling job's row is outside the logits";
  if (job.target >= vocab) return "a target is outside the vocabulary";
  if (job.num_bias < 0 || job.num_banned < 0 || job.num_prompt < 0 || job.num_generated < 0)
    return "a sampling job has a negative count";
  const int64_t num_ids =
      allowed_count(job) + int64_t{job.num_bias} + job.num_banned + job.num_prompt + job.num_generated;
  if (!fits(job.first_id, num_ids, batch.num_ids)) return "a sampling job's ids are outside their array";
  if (!fits(job.first_value, job.num_bias, batch.num_values)) return "a sampling job's biases are outside their array";
  if (job.first_mask >= 0 && !fits(job.first_mask, mask_bytes(vocab), batch.num_mask_bytes))
    return "a sampling job's mask is outside its array";
  const int num_alternatives = job.num_alternatives < 0 ? 0 : job.num_alternatives;
  if (!fits(job.first_alternative, num_alternatives, batch.num_alternatives))
    return "a sampling job's alternatives are outside their array";
  return nullptr;
}

SampleSpec spec_of(const SampleBatch& batch, const SampleJob& job) {
  SampleSpec spec;
  spec.temperature = job.temperature;
  spec.top_p = job.top_p;
  spec.typical_p = job.typical_p;
  spec.min_p = job.min_p;
  spec.presence_penalty = job.presence_penalty;
  spec.frequency_penalty = job.frequency_penalty;
  spec.repetition_penalty = job.repetition_penalty;
  spec.top_k = job.top_k;
  spec.num_alternatives = job.num_alternatives;
  spec.seed = job.seed;
  spec.choice = job.choice;
  spec.index = job.index;
  spec.bias_values = batch.values + job.first_value;
  spec.num_bias = job.num_bias;
  spec.num_allowed = job.num_allowed;
  spec.num_banned = job.num_banned;
  spec.num_prompt = job.num_prompt;
  spec.num_generated = job.num_generated;
  spec.bias_ids = batch.ids + job.first_id;
  spec.allowed = spec.bias_ids + job.num_bias;
  spec.banned = spec.allowed + allowed_count(job);
  spec.prompt = spec.banned + job.num_banned;
  spec.generated = spec.prompt + job.num_prompt;
  spec.mask = job.first_mask < 0 ? nullptr : batch.masks + job.first_mask;
  return spec;
}

}  // namespace

size_t sample_scratch_bytes(int vocab) {
  return 5 * padded(vocab) * 4 + 2 * chunks(vocab) * 4 + kSampleBuckets * (sizeof(int32_t) + sizeof(double)) + kLine;
}

int sample_chunks(int vocab) { return (vocab + kSampleChunk - 1) / kSampleChunk; }

SampleWorkspace divide_sample_scratch(const SampleScratch& scratch, int vocab) {
  auto next = reinterpret_cast<uintptr_t>(scratch.memory);
  next = (next + kLine - 1) / kLine * kLine;
  const auto take = [&next](size_t bytes) {
    void* part = reinterpret_cast<void*>(next);
    next += bytes;
    return part;
  };
  const size_t row = padded(vocab) * 4, maxima = chunks(vocab) * 4;
  SampleWorkspace work;
  work.adjusted = static_cast<float*>(take(row));
  work.logits = static_cast<float*>(take(row));
  work.weights = static_cast<float*>(take(row));
  work.tokens = static_cast<int32_t*>(take(row));
  work.places = static_cast<int32_t*>(take(row));
  work.maxima = static_cast<float*>(take(maxima));
  work.sums = static_cast<float*>(take(maxima));
  work.bucket_counts = static_cast<int32_t*>(take(kSampleBuckets * sizeof(int32_t)));
  work.bucket_weights = static_cast<double*>(take(kSampleBuckets * sizeof(double)));
  return work;
}

const char* sample_batch_fault(const SampleBatch& batch, int num_rows, int vocab) {
  int row = 0;
  for (int i = 0; i < batch.num_jobs; ++i) {
    const SampleJob& job = batch.jobs[i];
    if (const char* fault = job_fault(batch, job, num_rows, vocab)) return fault;
    if (job.row < row) return "sampling jobs are not in the order of their rows";
    row = job.row;
  }
  return nullptr;
}

void run_sample_job(const Kernels& kernels, const float* logits, const float* maxima, int vocab,
                    const SampleBatch& batch, int index, SampleScratch& scratch) {
  const SampleJob& job = batch.jobs[index];
  Scored* scored = batch.scored + index;
  Alternative* alternatives = batch.alternatives + job.first_alternative;
  if (job.target >= 0) {
    kernels.score(logits, maxima, vocab, ScoreSpec{job.target, job.num_alternatives}, scratch, scored, alternatives);
  } else {
    kernels.sample(logits, maxima, vocab, spec_of(batch, job), scratch, scored, alternatives);
  }
}

}  // namespace octavo
