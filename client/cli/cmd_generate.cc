#include "client/cli/cmd_generate.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/parse.h"
#include "client/cli/proto_json.h"
#include "client/lib/generation.h"
#include "client/lib/recurve_client.h"

namespace recurve {
namespace {

constexpr uint32_t kMostSamples = 16;  // the proto's limit

absl::Status Named(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

absl::Status SetText(absl::string_view flag, const std::string& text,
                     v1::GenerateRequest* request) {
  if (!IsProtobufString(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": the text is not valid UTF-8"));
  }
  request->set_prompt_text(text);
  return absl::OkStatus();
}

absl::Status SetPrompt(const GenerateFlags& flags,
                       v1::GenerateRequest* request) {
  const int given = flags.prompt.has_value() + flags.prompt_ids.has_value() +
                    flags.prompt_file.has_value();
  if (given == 0 && !flags.from_state.empty()) return absl::OkStatus();
  if (given != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "exactly one of --prompt, --prompt-ids and --prompt-file is needed, ",
        given, " were given"));
  }
  if (flags.prompt.has_value()) {
    return SetText("--prompt", *flags.prompt, request);
  }
  if (flags.prompt_file.has_value()) {
    // More than a server accepts in a message.
    const auto text = ReadTextFile(*flags.prompt_file, 4 << 20);
    if (!text.ok()) return Named("--prompt-file", text.status());
    return SetText("--prompt-file", *text, request);
  }
  const auto ids = ParseIdList(*flags.prompt_ids);
  if (!ids.ok()) return Named("--prompt-ids", ids.status());
  request->mutable_prompt_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  return absl::OkStatus();
}

absl::Status SetSampling(const GenerateFlags& flags,
                         v1::GenerateRequest* request) {
  v1::SamplingParams sampling;
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
  if (flags.min_p) sampling.set_min_p(*flags.min_p);
  if (flags.seed) sampling.set_seed(*flags.seed);
  if (flags.repetition_penalty) {
    sampling.set_repetition_penalty(*flags.repetition_penalty);
  }
  if (flags.presence_penalty) {
    sampling.set_presence_penalty(*flags.presence_penalty);
  }
  if (flags.frequency_penalty) {
    sampling.set_frequency_penalty(*flags.frequency_penalty);
  }
  for (const std::string& text : flags.logit_bias) {
    const auto bias = ParseLogitBias(text);
    if (!bias.ok()) return Named("--logit-bias", bias.status());
    if (!sampling.mutable_logit_bias()
             ->insert({bias->first, bias->second})
             .second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--logit-bias: token id ", bias->first, " is given twice"));
    }
  }
  if (sampling.ByteSizeLong() > 0) {
    *request->mutable_sampling() = std::move(sampling);
  }
  return absl::OkStatus();
}

absl::Status SetStopping(const GenerateFlags& flags,
                         v1::GenerateRequest* request) {
  v1::StoppingParams stopping;
  if (flags.max_new_tokens) stopping.set_max_new_tokens(*flags.max_new_tokens);
  for (const std::string& text : flags.stop) {
    if (!IsProtobufString(text)) {
      return absl::InvalidArgumentError("--stop: the text is not valid UTF-8");
    }
    stopping.add_stop_strings(text);
  }
  stopping.mutable_stop_token_ids()->Add(flags.stop_token_ids.begin(),
                                         flags.stop_token_ids.end());
  if (flags.ignore_eos) stopping.set_ignore_eos(true);
  if (flags.min_tokens) stopping.set_min_tokens(*flags.min_tokens);
  if (flags.include_stop) stopping.set_include_stop_str_in_output(true);
  if (flags.show_special_tokens) stopping.set_skip_special_tokens(false);
  if (stopping.ByteSizeLong() > 0) {
    *request->mutable_stopping() = std::move(stopping);
  }
  return absl::OkStatus();
}

nlohmann::ordered_json ToJson(const Generation& generation,
                              const GenerateFlags& flags) {
  nlohmann::ordered_json json;
  json["request_id"] = generation.request_id;
  json["token_ids"] = generation.token_ids;
  json["text"] = generation.text;
  json["finish_reason"] = FinishReasonName(generation.end.reason());
  if (generation.end.reason() == v1::FINISH_REASON_STOP_STRING) {
    json["stop_string"] = generation.end.stop_string();
  }
  json["usage"] = ProtoToJson(generation.end.usage());
  json["timings"] = ProtoToJson(generation.end.timings());
  json["seed"] = generation.seed;
  if (flags.prompt_logprobs) {
    json["prompt_logprobs"] = nlohmann::ordered_json::array();
    for (int i = 0; i < generation.prompt.ids_size(); ++i) {
      nlohmann::ordered_json token = {{"id", generation.prompt.ids(i)}};
      token.update(ProtoToJson(generation.prompt.logprobs(i)));
      json["prompt_logprobs"].push_back(std::move(token));
    }
  }
  if (flags.logprobs) {
    json["logprobs"] = nlohmann::ordered_json::array();
    for (const v1::TokenLogprob& logprob : generation.logprobs) {
      json["logprobs"].push_back(ProtoToJson(logprob));
    }
  }
  return json;
}

void PrintSummary(const Generation& generation, absl::string_view prefix) {
  const v1::Usage& usage = generation.end.usage();
  const v1::Timings& timings = generation.end.timings();
  const double rate = timings.total_seconds() > 0
                          ? usage.completion_tokens() / timings.total_seconds()
                          : 0;
  absl::FPrintF(
      stderr,
      "%s%d tokens (%s) after a prompt of %d, first token %.1f ms, "
      "total %.3f s, %.1f tokens/s, seed %d, request %s\n",
      prefix, usage.completion_tokens(),
      FinishReasonName(generation.end.reason()), usage.prompt_tokens(),
      timings.time_to_first_token_seconds() * 1000, timings.total_seconds(),
      rate, generation.seed, generation.request_id);
}

// Writes the tokens of an event to stdout.
absl::Status PrintTokens(const v1::Tokens& tokens, bool as_ids) {
  std::string text = tokens.text();
  if (as_ids) {
    text = absl::StrJoin(tokens.ids(), ",");
    if (tokens.index() > 0 && !text.empty()) text.insert(0, ",");
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return FlushStdout();
}

absl::Status Stream(RecurveClient* client, const v1::GenerateRequest& request,
                    bool print, bool as_ids, const CallOptions& options,
                    Generation* generation) {
  absl::Status failure;
  const absl::Status status = client->Generate(
      request,
      [&](const v1::GenerateEvent& event) {
        failure = generation->Add(event);
        if (failure.ok() && print && event.has_tokens()) {
          failure = PrintTokens(event.tokens(), as_ids);
        }
        return failure.ok();
      },
      options);
  if (print && !generation->token_ids.empty()) std::fputc('\n', stdout);
  std::fflush(stdout);
  RECURVE_RETURN_IF_ERROR(failure);
  RECURVE_RETURN_IF_ERROR(status);
  return generation->CheckFinished();
}

// All continuations of a request. Those that were under way when an error ended
// the call are kept, too.
absl::Status Collect(RecurveClient* client, const v1::GenerateRequest& request,
                     const CallOptions& options,
                     std::vector<Generation>* samples) {
  absl::Status failure;
  const absl::Status status = client->Generate(
      request,
      [&](const v1::GenerateEvent& event) {
        if (event.sample() >= samples->size()) {
          failure = absl::DataLossError(
              absl::StrCat("an event of continuation ", event.sample(), ", of ",
                           samples->size(), " from 0"));
        } else {
          failure = (*samples)[event.sample()].Add(event);
        }
        return failure.ok();
      },
      options);
  RECURVE_RETURN_IF_ERROR(failure);
  RECURVE_RETURN_IF_ERROR(status);
  for (const Generation& sample : *samples) {
    RECURVE_RETURN_IF_ERROR(sample.CheckFinished());
  }
  return absl::OkStatus();
}

// Prints each continuation that has tokens under a line with its number.
void PrintSamples(const std::vector<Generation>& samples, bool as_ids) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].token_ids.empty()) continue;
    const std::string text =
        as_ids ? absl::StrJoin(samples[i].token_ids, ",") : samples[i].text;
    absl::PrintF("[%d]\n", i);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
  }
}

absl::Status GenerateSamples(RecurveClient* client, const GenerateFlags& flags,
                             const v1::GenerateRequest& request, bool as_ids,
                             const CallOptions& options) {
  std::vector<Generation> samples(*flags.n);
  const absl::Status status = Collect(client, request, options, &samples);
  if (!flags.json) PrintSamples(samples, as_ids);
  std::fflush(stdout);
  RECURVE_RETURN_IF_ERROR(status);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (flags.json) {
      nlohmann::ordered_json json = {{"sample", i}};
      json.update(ToJson(samples[i], flags));
      list.push_back(std::move(json));
    } else {
      PrintSummary(samples[i], absl::StrCat("[", i, "] "));
    }
  }
  if (flags.json) absl::PrintF("%s\n", list.dump());
  return FlushStdout();
}

int Run(const GenerateFlags& flags) {
  const auto request = MakeGenerateRequest(flags);
  if (!request.ok()) return ReportUsage(request.status().message());
  const auto client = RecurveClient::Create(flags.server.address,
                                            MakeClientOptions(flags.server));
  if (!client.ok()) return ReportNoClient(client.status());
  Canceller canceller;
  CallOptions options;
  options.canceller = &canceller;
  if (flags.timeout_seconds.has_value()) {
    const auto timeout = PositiveSeconds("--timeout", *flags.timeout_seconds);
    if (!timeout.ok()) return ReportUsage(timeout.status().message());
    options.timeout = *timeout;
  }
  absl::Status status;
  {
    const Interrupt interrupt([&] { canceller.Cancel(); });
    status = GenerateAndPrint(client->get(), flags, *request, options);
  }
  if (status.ok()) return kExitOk;
  ReportError(status);
  return canceller.cancelled() ? kExitInterrupted : kExitFailure;
}

void AddCacheFlags(CLI::App* command, GenerateFlags* flags) {
  command->add_option("--cache-key", flags->cache_key,
                      "Use the prefix cache of requests with this key alone");
  command
      ->add_option("--snapshot-at", flags->snapshot_at,
                   "Have the prefix cache keep the first N tokens of the "
                   "prompt; may be repeated")
      ->allow_extra_args(false)
      ->transform(Decimal(UINT32_MAX));
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> MakeGenerateRequest(
    const GenerateFlags& flags) {
  if (flags.logprobs.has_value() && !flags.json) {
    return absl::InvalidArgumentError("--logprobs is printed with --json only");
  }
  if (flags.prompt_logprobs.has_value() && !flags.json) {
    return absl::InvalidArgumentError(
        "--prompt-logprobs is printed with --json only");
  }
  v1::GenerateRequest request;
  RECURVE_RETURN_IF_ERROR(SetPrompt(flags, &request));
  RECURVE_RETURN_IF_ERROR(SetSampling(flags, &request));
  RECURVE_RETURN_IF_ERROR(SetStopping(flags, &request));
  if (flags.n.has_value()) {
    if (*flags.n < 1 || *flags.n > kMostSamples) {
      return absl::InvalidArgumentError(
          absl::StrCat("--n: ", *flags.n, " is not in 1 to ", kMostSamples));
    }
    request.set_n(*flags.n);
  }
  if (flags.priority) request.set_priority(*flags.priority);
  if (flags.logprobs) request.set_logprobs(*flags.logprobs);
  if (flags.prompt_logprobs) {
    request.set_prompt_logprobs(*flags.prompt_logprobs);
  }
  if (!IsProtobufString(flags.cache_key)) {
    return absl::InvalidArgumentError(
        "--cache-key: the text is not valid UTF-8");
  }
  request.set_cache_key(flags.cache_key);
  if (!IsProtobufString(flags.from_state)) {
    return absl::InvalidArgumentError(
        "--from-state: the text is not valid UTF-8");
  }
  request.set_from_state(flags.from_state);
  request.mutable_snapshot_at()->Add(flags.snapshot_at.begin(),
                                     flags.snapshot_at.end());
  return request;
}

absl::Status GenerateAndPrint(RecurveClient* client, const GenerateFlags& flags,
                              const v1::GenerateRequest& request,
                              const CallOptions& options) {
  bool as_ids = false;
  if (!flags.json) {
    RECURVE_ASSIGN_OR_RETURN(const v1::ModelInfo model,
                             client->GetModelInfo(options));
    as_ids = model.tokenizer().empty();
  }
  if (flags.n.has_value()) {
    return GenerateSamples(client, flags, request, as_ids, options);
  }
  Generation generation;
  RECURVE_RETURN_IF_ERROR(
      Stream(client, request, !flags.json, as_ids, options, &generation));
  if (flags.json) {
    const std::string text = ToJson(generation, flags).dump();
    absl::PrintF("%s\n", text);
  } else {
    PrintSummary(generation, "");
  }
  return FlushStdout();
}

void AddPromptFlags(CLI::App* command, GenerateFlags* flags) {
  command->add_option("--prompt", flags->prompt, "The prompt");
  command->add_option("--prompt-ids", flags->prompt_ids,
                      "The prompt as token ids: 1,2,3");
  command->add_option("--prompt-file", flags->prompt_file,
                      "The prompt is this file, as it is; -: standard input");
}

void AddSamplingFlags(CLI::App* command, GenerateFlags* flags) {
  command->add_option("--temperature", flags->temperature,
                      "0 takes the most likely token");
  command
      ->add_option("--top-k", flags->top_k,
                   "Sample from the K most likely tokens; 0: all")
      ->transform(Decimal(UINT32_MAX));
  command->add_option("--top-p", flags->top_p,
                      "Sample from the smallest set of this probability");
  command->add_option("--min-p", flags->min_p,
                      "Drop tokens less likely than this times the likeliest");
  command->add_option("--seed", flags->seed, "Seed of the draws")
      ->transform(Decimal());
  command->add_option("--repetition-penalty", flags->repetition_penalty,
                      "On tokens of prompt and output; 1: off");
  command->add_option("--presence-penalty", flags->presence_penalty,
                      "Once on every token of the output");
  command->add_option("--frequency-penalty", flags->frequency_penalty,
                      "For each occurrence in the output");
  command
      ->add_option("--logit-bias", flags->logit_bias,
                   "ID:VALUE, added to the logit of a token; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--logprobs", flags->logprobs,
                   "Report log-probabilities (with --json): of the chosen "
                   "token and the N likeliest")
      ->transform(Decimal(UINT32_MAX));
  command
      ->add_option("--prompt-logprobs", flags->prompt_logprobs,
                   "Likewise of the tokens of the prompt, from the second on")
      ->transform(Decimal(UINT32_MAX));
}

void AddStoppingFlags(CLI::App* command, GenerateFlags* flags) {
  command
      ->add_option("--max-new-tokens", flags->max_new_tokens,
                   "Stop after this many tokens")
      ->transform(Decimal(UINT32_MAX));
  command
      ->add_option("--stop", flags->stop,
                   "Stop when the text contains this; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--stop-token-id", flags->stop_token_ids,
                   "Stop after this token; may be repeated")
      ->allow_extra_args(false)
      ->transform(Decimal(UINT32_MAX));
  command->add_flag("--ignore-eos", flags->ignore_eos,
                    "Go on after end-of-sequence tokens");
  command
      ->add_option("--min-tokens", flags->min_tokens,
                   "Nothing ends the output before this many tokens")
      ->transform(Decimal(UINT32_MAX));
  command->add_flag("--include-stop", flags->include_stop,
                    "The text has what stopped it");
  command->add_flag(
      "--show-special-tokens", flags->show_special_tokens,
      "The text has special tokens, as the tokenizer spells them");
}

void RegisterGenerate(CLI::App* app, int* exit_code) {
  CLI::App* const command = app->add_subcommand(
      "generate", "Stream the continuation of a prompt to stdout");
  const auto flags = std::make_shared<GenerateFlags>();
  AddServerFlags(command, &flags->server);
  AddPromptFlags(command, flags.get());
  AddSamplingFlags(command, flags.get());
  AddStoppingFlags(command, flags.get());
  AddCacheFlags(command, flags.get());
  command->add_option("--from-state", flags->from_state,
                      "Go on from this state, an id or a name; the prompt "
                      "follows it, and may be left out");
  command
      ->add_option("--n", flags->n,
                   "Continuations of the prompt, 1 to 16, printed at the end, "
                   "each under its number from 0; with --json: a list")
      ->transform(Decimal(UINT32_MAX));
  command->add_option("--priority", flags->priority, "Higher runs first")
      ->check(CLI::Range(INT32_MIN, INT32_MAX));
  command->add_option("--timeout", flags->timeout_seconds,
                      "Give up after this many seconds");
  command->add_flag("--json", flags->json,
                    "Print one JSON object at the end instead of text");
  command->footer(
      "What is not given is left to the server, which also checks the limits.\n"
      "A server without a tokenizer takes --prompt-ids and streams ids.");
  command->callback([flags, exit_code] { *exit_code = Run(*flags); });
}

}  // namespace recurve
