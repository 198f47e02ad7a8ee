#include "server/flags.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/byte_size.h"
#include "engine/models/registry.h"
#include "server/variables.h"

namespace recurve {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;  // larger values are typing
                                                 // errors

// Converts --max-num-seqs to RECURVE_MAX_NUM_SEQS.
std::string EnvironmentName(const std::string& flag) {
  std::string name = "RECURVE_" + flag;
  for (char& c : name) {
    c = c == '-'
            ? '_'
            : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// CLI11 would saturate a number that does not fit, and read 010 as 8.
template <typename T>
CLI::Validator WholeNumber(const std::string& expected) {
  return CLI::Validator(
      [expected](std::string& text) {
        T value = 0;
        if (!absl::SimpleAtoi(text, &value)) {
          return absl::StrCat("'", text, "' is not a whole number; expected ",
                              expected);
        }
        text = absl::StrCat(value);
        return std::string();
      },
      "");
}

// A size: bytes, or a number and a unit.
CLI::Validator Size(const std::string& expected) {
  return CLI::Validator(
      [expected](std::string& text) {
        int64_t bytes = 0;
        if (!absl::SimpleAtoi(text, &bytes)) {
          const absl::StatusOr<int64_t> size = ParseByteSize(text, /*least=*/0);
          if (!size.ok()) {
            return absl::StrCat("'", text, "' is not a size; expected ",
                                expected,
                                " bytes, like 1500, 512MiB, 24Gi or 80GB");
          }
          bytes = *size;
        }
        text = absl::StrCat(bytes);
        return std::string();
      },
      "");
}

CLI::Validator SizeOrAuto(const std::string& expected) {
  const CLI::Validator size = Size(absl::StrCat("auto, or ", expected));
  return CLI::Validator(
      [size](std::string& text) {
        return text == "auto" ? std::string() : size(text);
      },
      "");
}

// CLI11 would read an empty value as 0.
CLI::Validator Number(const std::string& expected) {
  return CLI::Validator(
      [expected](const std::string& text) {
        double value = 0;
        return absl::SimpleAtod(text, &value)
                   ? std::string()
                   : absl::StrCat("'", text, "' is not a number; expected ",
                                  expected);
      },
      "");
}

// An empty value usually comes from an unset variable and does not mean "none":
// the server would run without its TLS or its API keys.
CLI::Validator NotEmpty(const std::string& what) {
  return CLI::Validator(
      [what](const std::string& text) {
        return text.empty() ? absl::StrCat("expected ", what) : std::string();
      },
      "");
}

template <typename T>
CLI::Option* AddAny(CLI::App& app, const std::string& flag, T& value,
                    const std::string& help) {
  return app.add_option("--" + flag, value, help)
      ->envname(EnvironmentName(flag))
      ->capture_default_str();
}

CLI::Option* Add(CLI::App& app, const std::string& flag, std::string& value,
                 const std::string& help) {
  return AddAny(app, flag, value, help);
}

CLI::Option* Add(CLI::App& app, const std::string& flag, double& value,
                 const std::string& help) {
  return AddAny(app, flag, value, help);
}

// `expected`: the range, for the error message.
template <typename T>
CLI::Option* AddCount(CLI::App& app, const std::string& flag, T& value,
                      const std::string& expected, const std::string& help) {
  CLI::Option* const option = AddAny(app, flag, value, help);
  option->transform(WholeNumber<T>(expected));
  return option;
}

void AddSize(CLI::App& app, const std::string& flag, int64_t& value,
             const std::string& expected, const std::string& help) {
  AddAny(app, flag, value, help)->transform(Size(expected));
}

void AddSwitch(CLI::App& app, const std::string& flag, bool& value,
               const std::string& help) {
  app.add_option_function<std::string>(
         "--" + flag,
         [&value](const std::string& text) { value = text == "on"; }, help)
      ->check(CLI::IsMember({"on", "off"}))
      ->envname(EnvironmentName(flag))
      ->default_str(value ? "on" : "off");
}

struct Seconds {
  double shutdown = 45;
  double step = 30;
  double stalled = 60;
  double decode_idle = 600;
  int64_t tls_reload = 60;
  double http_idle = 620;
  double http_ping = 5;
};

void AddFlags(CLI::App& app, ServerOptions& o, Seconds& s) {
  const std::vector<std::string> families = FamilyChoices();
  Add(app, "model", o.model.path, "Folder of the checkpoint")
      ->required()
      ->check(NotEmpty("a folder"));
  Add(app, "model-family", o.model.family.family,
      absl::StrCat(
          "auto (by config.json and tensor names), ",
          absl::StrJoin(absl::MakeConstSpan(families).subspan(1), ", ")));
  Add(app, "model-variant", o.model.family.variant,
      "Variant of the family, as t6_variant of T6");
  Add(app, "tokenizer", o.model.tokenizer,
      "auto (as the checkpoint says), none, bytes, huggingface, "
      "sentencepiece, gpt2 or tiktoken")
      ->check(CLI::IsMember({"auto", "none", "bytes", "huggingface",
                             "sentencepiece", "gpt2", "tiktoken"}));
  Add(app, "served-model-name", o.served_model_name,
      "Name to report (default: the folder's)");
  Add(app, "host", o.host,
      "Address to listen on; without TLS keep it on loopback")
      ->check(NotEmpty("an address"));
  AddCount(app, "grpc-port", o.grpc_port, "0 to 65535",
           "gRPC port; 0 picks a free one")
      ->check(CLI::Range(0, 65535));
  AddCount(app, "http-port", o.http_port, "-1 to 65535",
           "Port of the chat and completions APIs and of /metrics; 0 picks a "
           "free one, -1 "
           "turns it off")
      ->check(CLI::Range(-1, 65535));
  AddCount(app, "metrics-port", o.metrics_port, "-1 to 65535",
           "Port of its own for /metrics, plaintext; 0 picks a free one, -1: "
           "on http-port")
      ->check(CLI::Range(-1, 65535));
  Add(app, "metrics-alias", o.metrics_alias,
      "none, or vllm: the metrics that vLLM has under its names, too")
      ->check(CLI::IsMember({"none", "vllm"}));
  Add(app, "chat-template", o.chat_template,
      "File with the chat template (Jinja), in place of the checkpoint's");
  Add(app, "chat-python", o.chat_python,
      "Python that can import jinja2, which renders chat templates; none: no "
      "chat")
      ->check(NotEmpty("a program, or none"));
  AddCount(app, "default-max-chat-tokens", o.default_max_chat_tokens,
           "0 to 2147483647",
           "Tokens of a chat completion that sets no max_tokens; 0: as many as "
           "the model has room for")
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  Add(app, "ui", o.ui,
      "auto, on or off: the page at /; auto: if --host is on loopback")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  AddCount(app, "max-http-connections", o.max_http_connections, "1 to 1048576",
           "HTTP connections at a time; more are answered 503")
      ->check(CLI::Range(1, 1048576));
  AddCount(app, "max-grpc-connections", o.max_grpc_connections, "1 to 1048576",
           "gRPC connections at a time; more are closed")
      ->check(CLI::Range(1, 1048576));
  AddSize(
      app, "max-grpc-buffer-bytes", o.max_grpc_buffer_bytes,
      "16777216 to 1125899906842624",
      "Memory for gRPC messages that are not yet whole, of all connections");
  AddSize(app, "max-stranger-connection-bytes", o.max_stranger_connection_bytes,
          "262144 to --max-stranger-bytes",
          "Memory that one connection may hold while its client is "
          "unauthenticated");
  AddSize(app, "max-stranger-bytes", o.max_stranger_bytes,
          "1048576 to 1125899906842624",
          "Memory that all such connections may hold together");
  Add(app, "tls-cert", o.transport.tls_cert,
      "PEM file of the certificate chain; with it gRPC and HTTP are served "
      "over TLS")
      ->check(NotEmpty("a file"));
  Add(app, "tls-key", o.transport.tls_key, "PEM file of its key")
      ->check(NotEmpty("a file"));
  Add(app, "tls-client-ca", o.transport.tls_client_ca,
      "PEM file; clients must have a certificate signed by one of these")
      ->check(NotEmpty("a file"));
  AddCount(app, "tls-reload", s.tls_reload, "1 to 86400",
           "Seconds after which the files are read again");
  AddSwitch(app, "admin", o.admin,
            "on or off: whether Control.Abort and Control.Drain are served");
  AddSwitch(app, "reflection", o.reflection,
            "on or off: whether gRPC reflection is served");
  Add(app, "state-dir", o.state_dir,
      "Folder where pinned states are kept; they are there after a restart")
      ->check(NotEmpty("a folder"));
  Add(app, "api-keys-file", o.api_keys_file,
      "File of tenants, digests of their API keys, and quotas; with it a key "
      "is "
      "needed")
      ->check(NotEmpty("a file"));
  Add(app, "device", o.model.device,
      "auto (cuda where there is a usable GPU, else cpu), cpu or cuda");
  Add(app, "dtype", o.model.dtype,
      "Weights in memory: auto (as stored), float32, bfloat16; on the GPU "
      "also float16");
  Add(app, "state-dtype", o.model.state_dtype,
      "Recurrent state: auto, float32");
  Add(app, "kv-dtype", o.model.kv_dtype,
      "Cache of keys and values or their factors: auto, float32; on the GPU "
      "auto, bfloat16, float16, and float32 without TPA");
  AddSwitch(app, "exact", o.model.exact,
            "on: a request's tokens do not depend on other requests; "
            "there is no other mode");
  AddCount(app, "num-threads", o.model.num_threads, "0 to 1024",
           "CPU threads; 0: one for each core");
  AddCount(app, "max-num-seqs", o.engine.max_num_seqs, "1 to 65536",
           "Sequences that hold memory at once");
  AddCount(
      app, "max-model-len", o.engine.max_model_len,
      "0 to what the model supports",
      "Tokens of a sequence, generated ones included; 0: what model and cache "
      "allow");
  AddCount(
      app, "max-num-batched-tokens", o.engine.max_num_batched_tokens,
      "0, or --max-num-seqs to 1048576",
      "Tokens in a step; 0: 2048 on a GPU, 512 on the CPU, and at least 64 "
      "more "
      "than max-num-seqs");
  AddCount(
      app, "max-chunk-tokens", o.engine.max_chunk_tokens,
      "0 to --max-num-batched-tokens",
      "Prompt tokens of one sequence in a step; 0: as max-num-batched-tokens, "
      "and for models that look at prompts as a whole less by max-num-seqs - "
      "1, or half of it if that is more");
  Add(app, "max-decode-slowdown", o.engine.max_decode_slowdown,
      "How many times longer than alone running sequences may wait for a "
      "token, on average, while long prompts are computed; 0: no limit")
      ->check(Number("0, or 1.1 to 1000"));
  AddCount(app, "max-queued-requests", o.engine.max_queued_requests,
           "0 to 1048576", "Requests that may wait beyond max-num-seqs");
  AddSize(app, "kv-pool-bytes", o.model.kv_pool_bytes,
          "0 to 9223372036854775807",
          "The most the KV cache may take, as 24GiB; 0: 1 GiB on the "
          "CPU, on a GPU "
          "what is left of its memory");
  AddCount(app, "kv-pages", o.model.kv_pages, "0 to 1073741824",
           "Pages of 64 tokens in the KV cache; 0: from kv-pool-bytes");
  AddSize(
      app, "swap-bytes", o.model.swap_bytes, "0 to 1125899906842624",
      "Memory of the host that preempted sequences are saved in, as 4GiB; 0: "
      "they are "
      "computed again");
  o.model.prefix_cache_auto = true;
  app.add_option_function<std::string>(
         "--prefix-cache-bytes",
         [&o](const std::string& text) {
           o.model.prefix_cache_auto = text == "auto";
           o.model.prefix_cache_bytes = 0;
           if (!o.model.prefix_cache_auto) {
             (void)absl::SimpleAtoi(text, &o.model.prefix_cache_bytes);
           }
         },
         "Memory of the host for snapshots of prompts, from which later "
         "prompts that begin alike continue, as 4GiB; 0: none; auto: a quarter "
         "of what the host has left, for a GPU at most 8GiB")
      ->envname(EnvironmentName("prefix-cache-bytes"))
      ->default_str("auto")
      ->transform(SizeOrAuto("0 to 1125899906842624"));
  Add(app, "prefix-cache", o.prefix_cache,
      "exact: what a prompt finds has the bits that it would compute; any: "
      "or not, for example generated, so that answers may depend on earlier "
      "ones; off: as "
      "--prefix-cache-bytes 0");
  AddSize(
      app, "state-bytes", o.engine.state_bytes, "0 to 1125899906842624",
      "The part of --prefix-cache-bytes that states with names may take, as "
      "1GiB; 0: half of it");
  AddCount(app, "default-max-new-tokens", o.default_max_new_tokens,
           "1 to 2147483647",
           "Tokens to generate for requests that do not say");
  Add(app, "shutdown-timeout", s.shutdown,
      "Seconds that running requests get to finish")
      ->check(Number("0 to 86400 seconds"));
  Add(app, "step-timeout", s.step, "Seconds after which a step counts as hung")
      ->check(Number("0.1 to 86400 seconds"));
  Add(app, "stalled-client-timeout", s.stalled,
      "Seconds after which a client that does not read is cut off")
      ->check(Number("0.1 to 86400 seconds"));
  Add(app, "decode-idle-timeout", s.decode_idle,
      "Seconds without a command after which a Decode stream ends; 0: never")
      ->check(Number("0, or 0.1 to 604800 seconds"));
  Add(app, "http-idle-timeout", s.http_idle,
      "Seconds after which an HTTP connection without a request is closed")
      ->check(Number("1 to 86400 seconds"));
  Add(app, "http-stream-ping", s.http_ping,
      "Seconds after which a stream over HTTP that has nothing to send sends a "
      "comment; 0: never")
      ->check(Number("0, or 0.1 to 86400 seconds"));
  AddCount(app, "max-buffered-tokens", o.max_buffered_tokens, "at least 1",
           "Unread tokens after which a stream pauses");
}

std::chrono::milliseconds ToMilliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000.0));
}

// Returns an error message, or nothing. CLI11 ignores a variable set to the
// empty string.
std::string CheckVariables(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_envname();
    const char* const value = name.empty() ? nullptr : getenv(name.c_str());
    if (value != nullptr && *value == '\0') {
      return name + " is set to an empty value; give it one, or unset it";
    }
  }
  return "";
}

std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Returns an error message, or nothing.
std::string CheckValues(const ServerOptions& o, const Seconds& s) {
  const std::pair<const char*, double> timeouts[] = {
      {"step-timeout", s.step}, {"stalled-client-timeout", s.stalled}};
  for (const auto& [name, value] : timeouts) {
    if (!(value >= 0.1 && value <= 86400)) {
      return absl::StrCat("--", name, " is ", value,
                          "; expected 0.1 to 86400 seconds");
    }
  }
  if (!(s.http_idle >= 1 && s.http_idle <= 86400)) {
    return absl::StrCat("--http-idle-timeout is ", s.http_idle,
                        "; expected 1 to 86400 seconds");
  }
  if (s.http_ping != 0 && !(s.http_ping >= 0.1 && s.http_ping <= 86400)) {
    return absl::StrCat("--http-stream-ping is ", s.http_ping,
                        "; expected 0, or 0.1 to 86400 seconds");
  }
  const std::pair<const char*, int> ports[] = {
      {"--grpc-port", o.grpc_port},
      {"--http-port", o.http_port},
      {"--metrics-port", o.metrics_port}};
  for (const auto& [name, port] : ports) {
    for (const auto& [other, taken] : ports) {
      if (&other == &name) break;
      if (port > 0 && port == taken) {
        return absl::StrCat(name, " is ", port, ", as ", other,
                            " is; expected a port of its own");
      }
    }
  }
  if (s.tls_reload < 1 || s.tls_reload > 86400) {
    return "--tls-reload is " + std::to_string(s.tls_reload) +
           "; expected 1 to 86400 seconds";
  }
  if (!(s.shutdown >= 0 && s.shutdown <= 86400)) {
    return absl::StrCat("--shutdown-timeout is ", s.shutdown,
                        "; expected 0 to 86400 seconds");
  }
  if (s.decode_idle != 0 &&
      !(s.decode_idle >= 0.1 && s.decode_idle <= 604800)) {
    return absl::StrCat("--decode-idle-timeout is ", s.decode_idle,
                        "; expected 0, or 0.1 to 604800 seconds");
  }
  struct Bytes {
    const char* flag;
    int64_t value;
    int64_t least;
  };
  for (const Bytes& b :
       {Bytes{"max-grpc-buffer-bytes", o.max_grpc_buffer_bytes, 16 << 20},
        Bytes{"max-stranger-bytes", o.max_stranger_bytes, 1 << 20},
        Bytes{"max-stranger-connection-bytes", o.max_stranger_connection_bytes,
              256 << 10}}) {
    if (b.value < b.least || b.value > kMaxBytes) {
      return absl::StrCat("--", b.flag, " is ", b.value, "; expected ", b.least,
                          " to ", kMaxBytes, " bytes");
    }
  }
  if (o.max_stranger_connection_bytes > o.max_stranger_bytes) {
    return absl::StrCat("--max-stranger-connection-bytes is ",
                        o.max_stranger_connection_bytes, "; expected at most ",
                        o.max_stranger_bytes, " (--max-stranger-bytes)");
  }
  if (o.prefix_cache != "exact" && o.prefix_cache != "any" &&
      o.prefix_cache != "off") {
    return absl::StrCat("--prefix-cache is ", o.prefix_cache,
                        "; expected exact, any or off");
  }
  if (o.prefix_cache == "off" && !o.model.prefix_cache_auto &&
      o.model.prefix_cache_bytes > 0) {
    return absl::StrCat("--prefix-cache is off, but --prefix-cache-bytes is ",
                        o.model.prefix_cache_bytes);
  }
  // The engine also checks this, but its message cannot say that 0 is allowed.
  const int64_t chunk = o.engine.max_chunk_tokens;
  const int64_t step = o.engine.max_num_batched_tokens;
  if (step == 0 && chunk < 0) {
    return absl::StrCat("--max-chunk-tokens is ", chunk,
                        "; expected 0 to --max-num-batched-tokens");
  }
  if (step > 0 && (chunk < 0 || chunk > step)) {
    return absl::StrCat("--max-chunk-tokens is ", chunk, "; expected 0 to ",
                        step, " (--max-num-batched-tokens)");
  }
  if (o.default_max_new_tokens < 1 || o.default_max_new_tokens > INT32_MAX) {
    return absl::StrCat("--default-max-new-tokens is ",
                        o.default_max_new_tokens, "; expected 1 to ",
                        INT32_MAX);
  }
  if (o.max_buffered_tokens < 1) {
    return "--max-buffered-tokens is " + std::to_string(o.max_buffered_tokens) +
           "; expected at least 1";
  }
  return "";
}

// The value of a flag on the command line, as written. The library does not
// distinguish it from the value of the flag's variable.
std::optional<std::string> OnCommandLine(const std::vector<std::string>& args,
                                         const std::string& flag) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == flag && i + 1 < args.size()) return args[i + 1];
    if (absl::StartsWith(args[i], flag + "=")) {
      return args[i].substr(flag.size() + 1);
    }
  }
  return std::nullopt;
}

// The flags that got their value from a variable, and its name.
std::map<std::string, std::string> FromVariables(
    const CLI::App& app, const std::vector<std::string>& args) {
  std::map<std::string, std::string> variables;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& name = option->get_envname();
    if (name.empty() || getenv(name.c_str()) == nullptr ||
        OnCommandLine(args, option->get_name())) {
      continue;
    }
    variables[option->get_name()] = name;
  }
  return variables;
}

std::vector<std::string> VariableNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_envname().empty()) names.push_back(option->get_envname());
  }
  return names;
}

// Warnings about variables that the command line overrides.
std::vector<std::string> OverriddenVariables(
    const CLI::App& app, const std::vector<std::string>& args) {
  std::vector<std::string> warnings;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& name = option->get_envname();
    if (name.empty()) continue;
    const char* const variable = getenv(name.c_str());
    if (variable == nullptr || *variable == '\0') continue;
    const std::string flag = option->get_name();
    const std::optional<std::string> given = OnCommandLine(args, flag);
    if (!given || *given == variable) continue;
    warnings.push_back(absl::StrCat(name, "=", variable, " is ignored: ", flag,
                                    " is ", *given,
                                    " on the command line, which wins"));
  }
  return warnings;
}

}  // namespace

std::string WithVariable(const FlagsResult& flags, const std::string& message) {
  const auto variable =
      flags.variables.find(message.substr(0, message.find_first_of(" :")));
  if (variable == flags.variables.end()) return message;
  return absl::StrCat(message, " (from ", variable->second, ")");
}

FlagsResult ParseFlags(int argc, const char* const* argv) {
  FlagsResult result;
  ServerOptions& options = result.options;
  options.engine.max_num_batched_tokens = 0;
  options.engine.max_chunk_tokens = 0;
  options.engine.max_decode_slowdown = 2;
  Seconds seconds;
  CLI::App app(
      "Serves a model with tensor product and linear attention over gRPC and "
      "HTTP.",
      "recurve-server");
  app.set_version_flag("--version",
                       std::string("recurve-server ") + RECURVE_VERSION);
  app.footer(
      "Every flag is also an environment variable: --max-num-seqs is "
      "RECURVE_MAX_NUM_SEQS. The flag wins.");
  AddFlags(app, options, seconds);
  const std::vector<std::string> args = {argv + 1, argv + argc};
  result.variables = FromVariables(app, args);
  std::string problem;
  try {  // the library reports errors by exceptions
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
      result.exit_code = app.exit(error);  // --help, --version
      return result;
    }
    problem = WithVariable(result, OneLine(error.what())) + " (see --help)";
  }
  // First, because it may be the reason for a missing flag.
  if (const std::string variable = CheckVariables(app); !variable.empty()) {
    problem = variable;
  }
  if (problem.empty()) {
    problem = WithVariable(result, CheckValues(options, seconds));
  }
  if (!problem.empty()) {
    std::cerr << "recurve-server: " << problem << '\n';
    result.exit_code = 2;
    return result;
  }
  result.warnings = OverriddenVariables(app, args);
  for (std::string& warning : UnknownVariables(VariableNames(app), environ)) {
    result.warnings.push_back(std::move(warning));
  }
  options.engine.reuse_generated = options.prefix_cache == "any";
  if (options.prefix_cache == "off") {
    options.model.prefix_cache_auto = false;
    options.model.prefix_cache_bytes = 0;
  }
  options.model.swap_bytes_required = app.count("--swap-bytes") > 0;
  options.shutdown_timeout = ToMilliseconds(seconds.shutdown);
  options.step_timeout = ToMilliseconds(seconds.step);
  options.decode_idle_timeout = ToMilliseconds(seconds.decode_idle);
  options.transport.tls_reload = std::chrono::seconds(seconds.tls_reload);
  options.engine.stalled_client_timeout = ToMilliseconds(seconds.stalled);
  options.http_idle_timeout = ToMilliseconds(seconds.http_idle);
  options.http_stream_ping = ToMilliseconds(seconds.http_ping);
  return result;
}

}  // namespace recurve
