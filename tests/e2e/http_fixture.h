#ifndef RECURVE_TESTS_E2E_HTTP_FIXTURE_H_
#define RECURVE_TESTS_E2E_HTTP_FIXTURE_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {

inline constexpr char kCompletionsPath[] = "/v1/completions";

// Fails the test if `text` is not JSON.
inline nlohmann::json ParseJson(const std::string& text) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << text;
  return value;
}

// The server's answer to a completions request.
inline HttpResult Complete(TestServer& server, const nlohmann::json& body,
                           const std::vector<std::string>& headers = {}) {
  return Fetch(server.server().http_port(),
               PostText(kCompletionsPath, body.dump(), headers));
}

}  // namespace recurve

#endif  // RECURVE_TESTS_E2E_HTTP_FIXTURE_H_
