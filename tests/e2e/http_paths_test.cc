// The paths of the HTTP API, with their methods and content types.

#include "nlohmann/json.hpp"
#include "tests/e2e/http_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(HttpPathsTest, PathsMethodsAndTypes) {
  TestServer server;
  const int port = server.server().http_port();
  const auto get = [&](const std::string& path) {
    return Fetch(port, HttpRequestText("GET", path));
  };
  const json models = ParseJson(get("/v1/models?limit=3").body);
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(models["data"][0]["max_model_len"], 8192);
  EXPECT_EQ(models["data"][0]["root"], "demo");  // which vllm bench serve reads
  EXPECT_EQ(ParseJson(get("/v1/models/demo").body)["id"], "demo");
  EXPECT_EQ(ParseJson(get("/v1/models/d%65mo").body)["id"], "demo");
  EXPECT_EQ(get("/v1/models/demo%2").status, 404);
  EXPECT_EQ(ParseJson(get("/v1/models/other").body)["error"]["code"],
            "model_not_found");
  // lm-eval sends this where it has been given no key.
  EXPECT_EQ(Fetch(port, HttpRequestText("GET", "/v1/models", "",
                                        {"Authorization: Bearer "}))
                .status,
            200);
  EXPECT_EQ(get("/health").body, "{\"status\":\"SERVING\"}");
  EXPECT_EQ(get("/metrics").status, 200);
  const HttpResult other = get("/v1/models/a%2Fb");
  EXPECT_THAT(other.body,
              HasSubstr("the model 'a/b' is not here; this server has 'demo'"));
  // The demo model has no template.
  const HttpResult chat = Fetch(port, PostText("/v1/chat/completions", "{}"));
  EXPECT_EQ(chat.status, 404);
  EXPECT_THAT(chat.body, HasSubstr("this server has no chat: "));
  const HttpResult nothing = get("/v1/x?y");
  EXPECT_EQ(nothing.status, 404);
  EXPECT_THAT(nothing.body, HasSubstr("there is nothing under '/v1/x'; "));
  const HttpResult wrong = get(kCompletionsPath);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(Fetch(port, HttpRequestText("POST", "/health", "x")).status, 405);
  const HttpResult plain =
      Fetch(port, HttpRequestText("POST", kCompletionsPath, "{}",
                                  {"Content-Type: text/plain"}));
  EXPECT_EQ(plain.status, 415);
  EXPECT_THAT(
      plain.body,
      HasSubstr("Content-Type is 'text/plain'; expected application/json"));
  EXPECT_THAT(Fetch(port, HttpRequestText("POST", kCompletionsPath, "{}")).body,
              HasSubstr("Content-Type is missing; expected application/json"));
  const HttpResult packed = Fetch(
      port, HttpRequestText(
                "POST", kCompletionsPath, "{}",
                {"Content-Type: application/json", "Content-Encoding: gzip"}));
  EXPECT_EQ(packed.status, 415);
  EXPECT_THAT(packed.body, HasSubstr("Content-Encoding is 'gzip'"));
  // HEAD has the length and no body; the next answer follows at once.
  HttpConnection connection(port);
  connection.Send(HttpRequestText("HEAD", "/health") +
                  HttpRequestText("GET", "/health"));
  const std::string both = connection.ReadSome();
  EXPECT_THAT(both, HasSubstr("Content-Length: 20"));
  // A request is counted when its answer has been written, which is after a
  // client may have read it.
  const auto counts = [&](const std::string& name, double value) {
    return WaitFor([&] { return MetricValue(port, name) == value; });
  };
  EXPECT_TRUE(counts(
      "recurve_http_requests_total{code=\"404\",endpoint=\"other\"}", 1));
  EXPECT_TRUE(counts(
      "recurve_http_requests_total{code=\"404\",endpoint=\"/v1/models\"}", 3));
  EXPECT_TRUE(counts(
      "recurve_http_request_duration_seconds_count{endpoint=\"/v1/models\"}",
      7));
}

// The line of a metric; empty if there is none.
std::string LineOf(const std::string& metrics, const std::string& begin) {
  const size_t at = metrics.find("\n" + begin);
  if (at == std::string::npos) return "";
  return metrics.substr(at + 1, metrics.find('\n', at + 1) - at - 1);
}

TEST(HttpPathsTest, MetricsHaveVllmsNamesIfAskedFor) {
  for (const bool own_port : {false, true}) {
    ServerOptions options = DemoOptions();
    options.metrics_alias = "vllm";
    if (own_port) options.metrics_port = 0;
    TestServer server(options);
    ASSERT_EQ(Complete(server, {{"prompt", "abc"}, {"max_tokens", 5}}).status,
              200);
    const int port =
        own_port ? server.server().metrics_port() : server.server().http_port();
    const std::string metrics =
        Fetch(port, HttpRequestText("GET", "/metrics")).body;
    const std::string model = "{model_name=\"demo\"} ";
    for (const auto& [name, value] :
         {std::pair("num_requests_running", "0"),
          std::pair("num_requests_waiting", "0"),
          std::pair("kv_cache_usage_perc", "0"),
          std::pair("gpu_cache_usage_perc", "0"),
          std::pair("generation_tokens_total", "5"),
          std::pair("prompt_tokens_total", "4"),
          std::pair("prefix_cache_queries_total", "4"),
          std::pair("gpu_prefix_cache_hits_total", "0"),
          std::pair("time_to_first_token_seconds_count", "1"),
          std::pair("inter_token_latency_seconds_count", "4")}) {
      const std::string begin = "vllm:" + std::string(name) + model;
      EXPECT_EQ(LineOf(metrics, begin), begin + value);
    }
    EXPECT_THAT(LineOf(metrics, "vllm:cache_config_info"),
                HasSubstr("block_size=\"64\""));
    EXPECT_THAT(metrics, HasSubstr("\n# TYPE vllm:num_requests_running gauge"));
    EXPECT_THAT(metrics, HasSubstr("\nrecurve_num_requests_running 0"));
  }
  TestServer server;
  EXPECT_THAT(
      Fetch(server.server().http_port(), HttpRequestText("GET", "/metrics"))
          .body,
      testing::Not(HasSubstr("vllm:")));
}

}  // namespace
}  // namespace recurve
