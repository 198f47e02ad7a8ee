#ifndef RECURVE_SERVER_OPENAI_STATE_PATHS_H_
#define RECURVE_SERVER_OPENAI_STATE_PATHS_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/http/http_reply.h"
#include "server/services/state_service.h"

namespace recurve {

// States over HTTP (docs/http.md): JSON in front of StateService.

inline constexpr char kStatesPath[] = "/v1/states";

// Whether a path is kStatesPath or below it.
bool IsStatesPath(absl::string_view path);

// The methods of such a path, as in the header Allow; null: there is nothing
// under it.
const char* StatesMethods(absl::string_view path);

// Answers a request of such a path, with one of its methods. `tokenizer` may be
// null. Thread-safe.
void HandleStates(const StateService& states, const Tokenizer* tokenizer,
                  int64_t vocab_size, const HttpRequest& request,
                  const std::shared_ptr<HttpReply>& reply);

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_STATE_PATHS_H_
