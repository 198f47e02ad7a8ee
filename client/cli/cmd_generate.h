#ifndef RECURVE_CLIENT_CLI_CMD_GENERATE_H_
#define RECURVE_CLIENT_CLI_CMD_GENERATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "recurve/v1/inference.pb.h"

namespace recurve {

// The flags of `recurve-client generate`; omitted flags are empty.
struct GenerateFlags {
  ServerFlags server;
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_ids;
  std::optional<std::string> prompt_file;
  std::optional<uint32_t> max_new_tokens;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<uint32_t> min_tokens;
  bool include_stop = false;
  bool show_special_tokens = false;
  std::optional<uint32_t> logprobs;
  std::optional<uint32_t> prompt_logprobs;
  std::optional<int32_t> priority;
  std::string cache_key;
  std::vector<uint32_t> snapshot_at;
  std::string from_state;
  std::optional<uint32_t> n;  // continuations
  std::optional<double> timeout_seconds;
  bool json = false;
};

// The request that the flags describe. Fields without a flag stay unset; the
// server checks their limits, except for n, which is 1 to 16. InvalidArgument
// (or the error of reading
// --prompt-file) names the flag.
absl::StatusOr<v1::GenerateRequest> MakeGenerateRequest(
    const GenerateFlags& flags);

// Declares the flags of the prompt, of sampling and of stopping.
void AddPromptFlags(CLI::App* command, GenerateFlags* flags);
void AddSamplingFlags(CLI::App* command, GenerateFlags* flags);
void AddStoppingFlags(CLI::App* command, GenerateFlags* flags);

// Runs the request and prints what comes, as `generate` does: with flags.n at
// the end, each continuation under its number from 0.
absl::Status GenerateAndPrint(RecurveClient* client, const GenerateFlags& flags,
                              const v1::GenerateRequest& request,
                              const CallOptions& options);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_CMD_GENERATE_H_
