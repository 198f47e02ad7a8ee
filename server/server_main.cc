#include "server/server_main.h"

#include <google/protobuf/stubs/common.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/byte_size.h"
#include "base/open_files.h"
#include "base/status_macros.h"
#include "server/flags.h"
#include "server/server.h"
#include "server/signal_thread.h"
#include "server/telemetry/process_log.h"
#include "server/transport/listening_sockets.h"
#include "spdlog/cfg/env.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

int Fail(const FlagsResult& flags, const absl::Status& status,
         ProcessLog* log) {
  log->PrintError(absl::StrCat(
      "recurve-server: ", WithVariable(flags, std::string(status.message()))));
  return EXIT_FAILURE;
}

// Open files other than counted connections: gRPC's and the HTTP servers' own,
// TLS and API keys, and HTTP connections being refused.
constexpr int64_t kOtherFiles = 640;
// The minimum to listen on every port, with TLS, and to have a connection or
// two.
constexpr int kLeastFiles = 48;

// Every connection is an open file; the usual limit of 1024 is for programs
// that use select().
absl::Status RaiseFileLimit(const ServerOptions& options) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  RECURVE_RETURN_IF_ERROR(CheckFiles("recurve-server", kLeastFiles));
  const int http_ports =
      (options.http_port >= 0 ? 1 : 0) + (options.metrics_port >= 0 ? 1 : 0);
  const int64_t wanted = kOtherFiles + options.max_grpc_connections +
                         http_ports * options.max_http_connections;
  if (limit.rlim_cur >= static_cast<rlim_t>(wanted)) return absl::OkStatus();
  spdlog::warn(
      "the process may open {} files, but {} are needed for as many "
      "connections as it takes: raise the limit (ulimit -Hn), or lower "
      "--max-grpc-connections ({}) or --max-http-connections ({})",
      limit.rlim_cur, wanted, options.max_grpc_connections,
      options.max_http_connections);
  return absl::OkStatus();
}

// Logged before weights are loaded, which may take minutes, so that a wrong
// value can be corrected immediately.
void LogPlan(const std::string& device, const Capacity& capacity) {
  spdlog::info("device: {}", device);
  spdlog::info(
      "capacity: {} sequences of up to {} tokens; {} pages of 64 tokens ({} "
      "bytes a token), {} bytes of state a sequence",
      capacity.num_slots, capacity.max_model_len, capacity.num_pages,
      capacity.cache_bytes_per_token, capacity.state_bytes_per_sequence);
  spdlog::info("memory: at least {}: weights {}, pages {}, states {}",
               ExactBytes(capacity.bytes()), ExactBytes(capacity.weight_bytes),
               ExactBytes(capacity.cache_bytes),
               ExactBytes(capacity.state_bytes));
  if (capacity.max_model_len_reduced) {
    spdlog::warn(
        "max_model_len is {} and not the model's {}: the KV cache holds no "
        "more (raise --kv-pool-bytes or --kv-pages)",
        capacity.max_model_len, capacity.supported_model_len);
  }
  if (capacity.max_whole_tokens == 0) return;
  spdlog::info(
      "prompts: up to {} tokens, each computed in one step "
      "(--max-chunk-tokens)",
      capacity.max_whole_tokens);
  if (capacity.sure_whole_tokens < capacity.max_whole_tokens) {
    spdlog::warn(
        "a prompt of more than {} tokens may wait until other sequences end, "
        "and those behind it, too: raise --max-num-batched-tokens, or lower "
        "--max-chunk-tokens or --max-num-seqs, so that the first is at least "
        "the sum of the others less one",
        capacity.sure_whole_tokens);
  }
}

// For the log line of loading, if the config files do not define it.
std::string EndOfSequence(const ModelInfo& info) {
  if (info.eos_file_of_tokenizer.empty()) return "";
  return absl::StrCat("; end of sequence ",
                      absl::StrJoin(info.eos_token_ids, ", "), ", by ",
                      info.eos_file_of_tokenizer);
}

#if GOOGLE_PROTOBUF_VERSION < 4022000
// Drops messages about invalid requests: the clients get an error, and could
// fill the log. (Later versions have no handler; their log is not examined.)
void DropProtobufLog(google::protobuf::LogLevel, const char*, int,
                     const std::string&) {}
#endif

}  // namespace

int ServerMain(int argc, char** argv, const WrapRunner& wrap) {
#if GOOGLE_PROTOBUF_VERSION < 4022000
  google::protobuf::SetLogHandler(&DropProtobufLog);
#endif
  FlagsResult flags = ParseFlags(argc, argv);
  if (flags.exit_code) return *flags.exit_code;
  ServerOptions& options = flags.options;
  const absl::StatusOr<std::unique_ptr<ProcessLog>> started =
      ProcessLog::Start();
  if (!started.ok()) {
    std::fprintf(stderr, "recurve-server: %s\n",
                 std::string(started.status().message()).c_str());
    return EXIT_FAILURE;
  }
  ProcessLog* log = started->get();
  spdlog::cfg::load_env_levels();
  for (const std::string& warning : flags.warnings) spdlog::warn("{}", warning);

  if (const absl::Status status = RaiseFileLimit(options); !status.ok()) {
    return Fail(flags, status, log);
  }
  const absl::StatusOr<std::unique_ptr<SignalThread>> signals =
      SignalThread::Start();
  if (!signals.ok()) return Fail(flags, signals.status(), log);
  std::signal(SIGPIPE, SIG_IGN);

  // First the fast checks: loading may take minutes.
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Create(options);
  if (!server.ok()) return Fail(flags, server.status(), log);
  const int64_t wanted_state_bytes = options.engine.state_bytes;
  absl::StatusOr<LoadedModel> model =
      LoadModel(options.model, &options.engine, LogPlan);
  if (!model.ok()) return Fail(flags, model.status(), log);
  if (wrap != nullptr) model->runner = wrap(std::move(model->runner));
  const ModelInfo info = model->runner->info();
  spdlog::info(
      "loaded {}: family {}{}{}, {} parameters, {} weights ({:.1f} MB) on {}, "
      "in {:.1f} s ({:.2f} GB/s){}",
      options.model.path, info.family, info.variant.empty() ? "" : " ",
      info.variant, info.parameters, info.weight_dtype,
      static_cast<double>(info.weight_bytes) * 1e-6, info.device,
      model->load_seconds,
      static_cast<double>(info.weight_bytes) * 1e-9 / model->load_seconds,
      EndOfSequence(info));
  // On a GPU; there is no warm-up on the CPU.
  if (model->warm_up_seconds > 1e-3)
    spdlog::info("warmed up in {:.1f} s", model->warm_up_seconds);
  for (const std::string& remark : info.remarks)
    spdlog::warn("{}: {}", options.model.path, remark);
  if (!model->ignored_keys.empty()) {
    spdlog::debug("{}: keys of config.json without effect: {}",
                  options.model.path, absl::StrJoin(model->ignored_keys, ", "));
  }
  const CacheSpec spec = model->runner->cache_spec();
  // Snapshots of prompts take what is beyond --swap-bytes.
  const int64_t host_bytes = spec.num_host_blocks * HostBlockBytes(spec);
  const int64_t for_preempted =
      std::min(host_bytes, model->capacity.swap_bytes);
  spdlog::info(
      "preempted sequences: {} bytes of host memory to save them in",
      model->capacity.prefix_cache_bytes > 0 ? for_preempted : host_bytes);
  if (model->capacity.prefix_cache_bytes > 0) {
    spdlog::info("prefix cache: {} bytes of host memory for snapshots",
                 host_bytes - for_preempted);
    if (host_bytes == for_preempted) {
      spdlog::warn(
          "--prefix-cache-bytes is {}, which the device cannot have, or too "
          "little for one prompt: no prefix is cached",
          model->capacity.prefix_cache_bytes);
    }
  }
  if (options.engine.state_bytes < wanted_state_bytes) {
    spdlog::warn(
        "--state-bytes is {}; states have {}, all of --prefix-cache-bytes, of "
        "which they are a part",
        wanted_state_bytes, options.engine.state_bytes);
  }
  if (spec.num_host_blocks == 0 && !options.model.swap_bytes_required) {
    const int64_t least = HostBlocksFor(1, spec) * HostBlockBytes(spec);
    if (options.model.swap_bytes < least) {
      spdlog::warn(
          "preempted sequences are computed again: to save one takes {} bytes "
          "at least (raise --swap-bytes from its default of {})",
          least, options.model.swap_bytes);
    } else {
      spdlog::warn(
          "preempted sequences are computed again: the host, or its control "
          "group, leaves no {} bytes to save them in (lower --swap-bytes from "
          "this default)",
          options.model.swap_bytes);
    }
  }

  if (absl::Status status = (*server)->Serve(options.engine, *std::move(model));
      !status.ok()) {
    return Fail(flags, status, log);
  }
  (*signals)->SetServer(server->get());
  if ((*server)->http_port() >= 0) {
    log->Print(absl::StrCat("listening http=",
                            HostPort(options.host, (*server)->http_port())));
  }
  if ((*server)->metrics_port() >= 0) {
    log->Print(absl::StrCat("listening metrics=",
                            HostPort(options.host, (*server)->metrics_port())));
  }
  log->Print(absl::StrCat("listening grpc=",
                          HostPort(options.host, (*server)->grpc_port())));

  const absl::Status outcome = (*server)->Wait();
  (*signals)->SetServer(nullptr);
  server->reset();
  if (!outcome.ok()) return Fail(flags, outcome, log);
  spdlog::info("drained; bye");
  return EXIT_SUCCESS;
}

}  // namespace recurve
