#include "engine/cuda/cuda_sampler.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/serving/request.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace {

constexpr auto kHost = CudaMemory::Kind::kHost;
constexpr int64_t kUploadTokens = 1 << 16;  // per copy

// Rows of floats begin at multiples of 16 bytes.
int64_t PaddedWidth(int64_t logits) { return (logits + 3) / 4 * 4; }

// The limits of ValidateOptions fit the tables.
static_assert(kMaxLogitBias + kMaxMaskedTokens <= kSampleMaxBias);
static_assert(kMaxLogprobs <= kSampleMaxTop);

}  // namespace

int64_t CudaSampler::DeviceBytes(int64_t slots, int64_t samples,
                                 int64_t vocab) {
  const int64_t width = PaddedWidth(vocab);
  const int64_t slot = width * static_cast<int64_t>(sizeof(uint32_t)) +
                       kSampleMaxBias * static_cast<int64_t>(sizeof(CudaBias));
  const int64_t sample =
      width * static_cast<int64_t>(sizeof(float)) +
      static_cast<int64_t>(sizeof(CudaSampleResult)) +
      kSampleMaxTop * static_cast<int64_t>(sizeof(CudaTopToken));
  return slots * slot + samples * sample +
         kUploadTokens * static_cast<int64_t>(sizeof(uint32_t));
}

absl::Status CudaSampler::Allocate(int64_t slots, int64_t samples,
                                   int64_t vocab) {
  if (vocab > kMaxSampleVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has a vocabulary of ", vocab,
                     "; sampling supports at most ", kMaxSampleVocab));
  }
  width_ = PaddedWidth(vocab);
  max_samples_ = samples;
  slots_.assign(slots, {});
  const auto allocate = [](CudaMemory* memory, CudaMemory::Kind kind,
                           int64_t count, size_t size) -> absl::Status {
    RECURVE_ASSIGN_OR_RETURN(
        *memory, CudaMemory::Allocate(kind, count * static_cast<int64_t>(size),
                                      "sampling; lower --max-num-seqs"));
    return absl::OkStatus();
  };
  const int64_t top = samples * kSampleMaxTop;
  RECURVE_RETURN_IF_ERROR(
      allocate(&counts_, kDevice, slots * width_, sizeof(uint32_t)));
  RECURVE_RETURN_IF_ERROR(
      allocate(&biases_, kDevice, slots * kSampleMaxBias, sizeof(CudaBias)));
  RECURVE_RETURN_IF_ERROR(
      allocate(&uploads_, kDevice, kUploadTokens, sizeof(uint32_t)));
  RECURVE_RETURN_IF_ERROR(
      allocate(&adjusted_, kDevice, samples * width_, sizeof(float)));
  RECURVE_RETURN_IF_ERROR(
      allocate(&results_, kDevice, samples, sizeof(CudaSampleResult)));
  RECURVE_RETURN_IF_ERROR(allocate(&top_, kDevice, top, sizeof(CudaTopToken)));
  for (Step& step : steps_) {
    RECURVE_RETURN_IF_ERROR(
        allocate(&step.results, kHost, samples, sizeof(CudaSampleResult)));
    RECURVE_RETURN_IF_ERROR(
        allocate(&step.top, kHost, top, sizeof(CudaTopToken)));
  }
  return absl::OkStatus();
}

int64_t CudaSampler::StepBytes(int64_t samples) {
  return CudaStepBuffer::Room<CudaSampleRow>(samples);
}

absl::Status CudaSampler::Count(absl::Span<const int32_t> tokens, uint32_t flag,
                                int32_t slot, cudaStream_t stream) {
  std::vector<uint32_t> words;
  while (!tokens.empty()) {
    const auto some = tokens.subspan(0, kUploadTokens);
    tokens.remove_prefix(some.size());
    words.clear();
    for (int32_t token : some) words.push_back(token | flag);
    // Copied from pageable memory: the source may be overwritten immediately.
    RECURVE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(uploads_.data(), words.data(),
                                   words.size() * sizeof(uint32_t),
                                   cudaMemcpyHostToDevice, stream),
                   "copying tokens for penalties"));
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        LaunchCountTokens(
            {uploads_.as<const uint32_t>(), static_cast<int64_t>(words.size()),
             counts_.as<uint32_t>() + slot * width_},
            stream),
        "counting tokens for penalties"));
  }
  return absl::OkStatus();
}

absl::Status CudaSampler::UpdateTables(const SampleRequest& request,
                                       int32_t slot, cudaStream_t stream) {
  const SamplingParams& params = *request.params;
  Slot& held = slots_[slot];
  if (!held.used || held.sequence != request.sequence) {
    held = {};
    held.used = true;
    held.sequence = request.sequence;
  }
  if (!held.bias && !(params.logit_bias.empty() && params.masked.empty())) {
    std::vector<CudaBias> entries;
    for (const auto& [id, bias] : params.logit_bias)
      entries.push_back({id, bias});
    for (const int32_t id : params.masked)
      entries.push_back({id, -std::numeric_limits<float>::infinity()});
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(biases_.as<CudaBias>() + slot * kSampleMaxBias,
                        entries.data(), entries.size() * sizeof(CudaBias),
                        cudaMemcpyHostToDevice, stream),
        "copying logit_bias"));
    held.bias = true;
  }
  if (!HasPenalties(params)) return absl::OkStatus();
  if (request.output.size() < request.index) {
    // The previous step draws and counts the tokens in between.
    RECURVE_CHECK(held.counts && held.output == request.index &&
                  held.prompt == request.prompt.size());
    ++held.output;
    return absl::OkStatus();
  }
  // A token that was drawn and then discarded was counted, too.
  if (!held.counts || held.prompt > request.prompt.size() ||
      held.output > request.output.size()) {
    RECURVE_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(counts_.as<uint32_t>() + slot * width_, 0,
                                   width_ * sizeof(uint32_t), stream),
                   "clearing counts for penalties"));
    held.counts = true;
    held.prompt = held.output = 0;
  }
  const auto prompt = request.prompt.subspan(held.prompt);
  const auto output = request.output.subspan(held.output);
  RECURVE_RETURN_IF_ERROR(Count(prompt, kSampleInPrompt, slot, stream));
  RECURVE_RETURN_IF_ERROR(Count(output, 0, slot, stream));
  held.prompt = request.prompt.size();
  held.output = request.output.size() + 1;  // including the one drawn now
  return absl::OkStatus();
}

absl::Status CudaSampler::Begin(const StepBatch& batch,
                                absl::Span<const int32_t> rows, int64_t padded,
                                CudaStepBuffer* step, cudaStream_t stream) {
  const auto count = static_cast<int64_t>(batch.samples.size());
  RECURVE_CHECK(count <= padded && padded <= max_samples_);
  Step& begun = steps_[++num_begun_ % 2];
  begun.batch = &batch;
  begun.any_top = false;
  auto* const results = begun.results.as<CudaSampleResult>();
  CudaSampleRow* const samples = step->Add(padded, &samples_);
  for (int64_t i = 0; i < padded; ++i) {
    CudaSampleRow row = {};
    row.row = -1;
    if (i < count) {
      const SampleRequest& request = batch.samples[i];
      // Names every field, so that a new one fails to compile until handled
      // here.
      const auto& [repetition_penalty, presence_penalty, frequency_penalty,
                   temperature, top_p, min_p, top_k, seed, logit_bias,
                   num_logprobs, min_tokens, masked] = *request.params;
      const int32_t slot =
          batch
              .slots[batch.row_sequence[batch.logit_rows[request.logit_index]]];
      RECURVE_RETURN_IF_ERROR(UpdateTables(request, slot, stream));
      row.row = rows[i];
      row.slot = slot;
      row.copy = results + i;
      if (temperature > 0) {
        row.inverse_temperature = 1.0 / temperature;
        row.uniform = SampleUniform(seed, request.index);
      }
      row.penalties = HasPenalties(*request.params) ? 1 : 0;
      row.num_bias = static_cast<int32_t>(logit_bias.size());
      if (request.index < static_cast<uint64_t>(min_tokens))
        row.num_bias += static_cast<int32_t>(masked.size());
      row.repetition_penalty = repetition_penalty;
      row.presence_penalty = presence_penalty;
      row.frequency_penalty = frequency_penalty;
      row.top_p = top_p;
      row.min_p = min_p;
      row.top_k = top_k;
      row.num_logprobs = num_logprobs;
      begun.any_top = begun.any_top || num_logprobs > 0;
    }
    samples[i] = row;
  }
  return absl::OkStatus();
}

cudaError_t CudaSampler::Launch(const float* logits, int64_t stride,
                                int64_t vocab, int64_t first, int64_t count,
                                cudaStream_t stream) const {
  CudaSampleParams params = {};
  params.samples = samples_ + first;
  params.num_samples = count;
  params.logits = logits;
  params.stride = stride;
  params.vocab = vocab;
  params.counts = counts_.as<uint32_t>();
  params.counts_stride = width_;
  params.bias = biases_.as<const CudaBias>();
  params.adjusted = adjusted_.as<float>() + first * stride;
  params.results = results_.as<CudaSampleResult>() + first;
  params.top = top_.as<CudaTopToken>() + first * kSampleMaxTop;
  return LaunchSample(params, stream);
}

cudaError_t CudaSampler::CopyTop(cudaStream_t stream) const {
  const Step& step = begun();
  const size_t count = step.batch->samples.size();
  if (count == 0 || !step.any_top) return cudaSuccess;
  return cudaMemcpyAsync(step.top.data(), top_.data(),
                         count * kSampleMaxTop * sizeof(CudaTopToken),
                         cudaMemcpyDeviceToHost, stream);
}

void CudaSampler::Read(StepOutput* output) {
  const Step& step = steps_[++num_read_ % 2];
  output->samples.clear();
  for (size_t i = 0; i < step.batch->samples.size(); ++i) {
    const CudaSampleResult& drawn = step.results.as<CudaSampleResult>()[i];
    if (drawn.token == kNonFiniteLogits) {
      output->samples.emplace_back(absl::InternalError(
          "non-finite logits: a NaN, an infinity, or nothing but -inf"));
      continue;
    }
    SampleResult result;
    result.token = drawn.token;
    if (step.batch->samples[i].params->num_logprobs >= 0) {
      const double log_sum = SampleLogSum(drawn.max, drawn.sum);
      result.logprob = static_cast<float>(drawn.logit - log_sum);
      const CudaTopToken* const top =
          step.top.as<CudaTopToken>() + i * kSampleMaxTop;
      for (int32_t t = 0; t < drawn.num_top; ++t) {
        result.top.emplace_back(top[t].id,
                                static_cast<float>(top[t].logit - log_sum));
      }
    }
    output->samples.emplace_back(std::move(result));
  }
}

}  // namespace recurve
