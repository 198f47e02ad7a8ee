#include "server/services/state_service.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/requests/convert.h"
#include "server/services/state_calls.h"

namespace recurve {
namespace {

StateOwner OwnerOf(const std::shared_ptr<Tenant>& caller) {
  if (caller == nullptr) return {};
  return {caller->flow().id, caller->max_state_bytes()};
}

StateOptions FromProto(const v1::StateOptions& in) {
  StateOptions out;
  out.name = in.name();
  if (in.has_ttl_seconds()) out.ttl_seconds = in.ttl_seconds();
  out.pinned = in.pinned();
  return out;
}

// What is too large to be a position is the largest.
int64_t Position(uint64_t at) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(at, kMax));
}

absl::StatusOr<StateOptions> Valid(const v1::StateOptions& in) {
  StateOptions options = FromProto(in);
  RECURVE_RETURN_IF_ERROR(ValidateStateOptions(options, "options."));
  return options;
}

v1::StateInfo ToProto(const StateInfo& in) {
  v1::StateInfo out;
  out.set_id(in.id);
  out.set_name(in.name);
  out.set_tokens(static_cast<uint64_t>(in.tokens));
  out.set_computed_tokens(static_cast<uint64_t>(in.computed_tokens));
  out.set_bytes(static_cast<uint64_t>(in.bytes));
  if (in.seed) out.set_seed(*in.seed);
  out.set_pinned(in.pinned);
  out.set_stored(in.stored);
  out.set_ttl_seconds(in.ttl_seconds);
  out.set_age_seconds(in.age_seconds);
  out.set_parent(in.parent);
  return out;
}

absl::StatusOr<v1::StateInfo> ToProto(const absl::StatusOr<StateInfo>& in) {
  if (!in.ok()) return in.status();
  return ToProto(*in);
}

}  // namespace

absl::StatusOr<StateService::Caller> StateService::CallerOf(
    absl::Span<const std::string> authorization,
    absl::string_view entry) const {
  if (options_.tenants == nullptr) return nullptr;
  return options_.tenants->Authenticate(authorization, entry);
}

absl::StatusOr<StateService::Caller> StateService::Authenticate(
    const RpcHead& head, RpcStream& stream) const {
  RECURVE_ASSIGN_OR_RETURN(Caller caller,
                           CallerOf(head.authorization, "metadata entry"));
  if (caller != nullptr) stream.Trust();
  return caller;
}

absl::StatusOr<v1::StateInfo> StateService::Get(
    const Caller& caller, const std::string& state) const {
  return ToProto(options_.engine->states().Get(OwnerOf(caller).flow, state));
}

absl::StatusOr<std::vector<int32_t>> StateService::TokensOf(
    const Caller& caller, const std::string& state) const {
  return options_.engine->states().TokensOf(OwnerOf(caller).flow, state);
}

void StateService::Snapshot(const Caller& caller,
                            const v1::SnapshotRequest& request,
                            const UnaryDone<v1::StateInfo>& done) const {
  const absl::StatusOr<uint64_t> id = ParseRequestId(request.request_id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<StateOptions> options = Valid(request.options());
  if (!options.ok()) return done(options.status());
  std::optional<int64_t> at;
  if (request.has_at()) at = Position(request.at());
  const StateOwner owner = OwnerOf(caller);
  Engine* const engine = options_.engine;
  engine->TakeState(owner.flow, *id, at,
                    [this, engine, caller, owner, options = *std::move(options),
                     done](absl::StatusOr<SequenceStatePtr> state) {
                      if (!state.ok()) return done(state.status());
                      Answer(caller,
                             engine->states().Add(owner, *std::move(state),
                                                  options, std::nullopt),
                             std::nullopt, done);
                    });
}

absl::StatusOr<v1::ForkResponse> StateService::Fork(
    const Caller& caller, const v1::ForkRequest& request) const {
  RECURVE_RETURN_IF_ERROR(options_.engine->CheckStates());
  if (request.count() < 1 || request.count() > kMaxForks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "count is ", request.count(), "; expected 1 to ", kMaxForks));
  }
  RECURVE_ASSIGN_OR_RETURN(StateOptions options, Valid(request.options()));
  if (!options.name.empty() || options.pinned) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.pinned ? "options.pinned is true"
                       : absl::StrCat("options.name is ", options.name),
        "; the states of a fork have ids and a time to live; Pin names and "
        "pins them"));
  }
  StateStore& store = options_.engine->states();
  const StateOwner owner = OwnerOf(caller);
  RECURVE_ASSIGN_OR_RETURN(const StateStore::Found found,
                           store.Use(owner.flow, request.state()));
  SequenceStatePtr state = found.state;
  if (request.has_at() && Position(request.at()) != found.info.tokens) {
    RECURVE_ASSIGN_OR_RETURN(
        state, options_.engine->CutState(*state, Position(request.at()), "at"));
  }
  options.parent = found.info.id;
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<StateInfo> states,
      store.Fork(owner, state, static_cast<int>(request.count()),
                 request.has_seed() ? request.seed() : RandomSeed(), options));
  v1::ForkResponse response;
  for (const StateInfo& info : states) *response.add_states() = ToProto(info);
  return response;
}

void StateService::Answer(const Caller& caller,
                          const absl::StatusOr<StateInfo>& info,
                          const std::optional<StateInfo>& before,
                          const UnaryDone<v1::StateInfo>& done) const {
  if (!info.ok() || options_.files == nullptr) return done(ToProto(info));
  if (!info->pinned) {
    if (info->stored) options_.files->Remove(info->id);
    v1::StateInfo answer = ToProto(*info);
    answer.set_stored(false);
    return done(std::move(answer));
  }
  const uint32_t flow = OwnerOf(caller).flow;
  options_.files->Write(
      flow, caller == nullptr ? "" : caller->name(), info->id,
      [this, flow, info = *info, before, done](const absl::Status& status) {
        if (status.ok()) {
          v1::StateInfo answer = ToProto(info);
          answer.set_stored(true);
          return done(std::move(answer));
        }
        // Else each further try would leave one more that nothing releases.
        StateStore& states = options_.engine->states();
        if (before) {
          states.UndoPin(flow, *before);
        } else {
          (void)states.Release(flow, info.id);  // or it is released already
        }
        done(status);
      });
}

void StateService::Pin(const Caller& caller, const v1::PinStateRequest& request,
                       const UnaryDone<v1::StateInfo>& done) const {
  if (absl::Status status = options_.engine->CheckStates(); !status.ok()) {
    return done(status);
  }
  const absl::StatusOr<StateOptions> options = Valid(request.options());
  if (!options.ok()) return done(options.status());
  StateStore& states = options_.engine->states();
  const uint32_t flow = OwnerOf(caller).flow;
  const absl::StatusOr<StateInfo> before = states.Get(flow, request.state());
  absl::StatusOr<StateInfo> after = states.Pin(flow, request.state(), *options);
  // Its file is as it would be.
  if (before.ok() && after.ok() && after->pinned && after->stored &&
      before->name == after->name) {
    return done(ToProto(after));
  }
  Answer(caller, after, before.ok() ? std::optional(*before) : std::nullopt,
         done);
}

absl::Status StateService::Release(
    const Caller& caller, const v1::ReleaseStateRequest& request) const {
  RECURVE_ASSIGN_OR_RETURN(
      const StateInfo info,
      options_.engine->states().Release(OwnerOf(caller).flow, request.state()));
  if (options_.files != nullptr && (info.pinned || info.stored)) {
    options_.files->Remove(info.id);
  }
  return absl::OkStatus();
}

v1::ListStatesResponse StateService::List(const Caller& caller) const {
  const StateStore::Listing listing =
      options_.engine->states().List(OwnerOf(caller));
  v1::ListStatesResponse response;
  for (const StateInfo& state : listing.states) {
    *response.add_states() = ToProto(state);
  }
  response.set_bytes(static_cast<uint64_t>(listing.bytes));
  response.set_max_bytes(static_cast<uint64_t>(listing.max_bytes));
  return response;
}

std::shared_ptr<RpcListener> StateService::Export(
    const Caller& caller, std::shared_ptr<RpcStream> stream) const {
  return std::make_shared<ExportCall>(
      std::move(stream),
      [this, flow = OwnerOf(caller).flow](const v1::ExportStateRequest& request)
          -> absl::StatusOr<std::unique_ptr<StateExport>> {
        Engine& engine = *options_.engine;
        RECURVE_RETURN_IF_ERROR(engine.CheckStates());
        RECURVE_ASSIGN_OR_RETURN(StateStore::Found found,
                                 engine.states().Use(flow, request.state()));
        return StateExport::Make(engine, options_.fingerprint,
                                 std::move(found));
      });
}

std::shared_ptr<RpcListener> StateService::Import(
    const Caller& caller, std::shared_ptr<RpcStream> stream) const {
  Engine* const engine = options_.engine;
  const StateOwner owner = OwnerOf(caller);
  return std::make_shared<ImportCall>(
      std::move(stream),
      std::make_unique<StateImport>(engine, &options_.fingerprint, owner),
      [engine](const v1::StateOptions& options) {
        RECURVE_RETURN_IF_ERROR(engine->CheckStates());
        return Valid(options).status();
      },
      [this, engine, caller, owner](
          SequenceStatePtr state, const v1::StateOptions& options,
          const v1::StateHeader& header, const auto& done) {
        std::optional<uint64_t> seed;
        if (header.has_seed()) seed = header.seed();
        Answer(caller,
               engine->states().Add(owner, std::move(state), FromProto(options),
                                    seed),
               std::nullopt, done);
      });
}

void StateService::AddMethods(RpcMethods* methods) const {
  // A method whose call is more than a request and a response.
  using Make = std::shared_ptr<RpcListener> (StateService::*)(
      const Caller&, std::shared_ptr<RpcStream>) const;
  const auto stream_method = [this](Make make) -> RpcMethod {
    return [this, make](const RpcHead& head, std::shared_ptr<RpcStream> stream)
               -> std::shared_ptr<RpcListener> {
      const absl::StatusOr<Caller> caller = Authenticate(head, *stream);
      if (!caller.ok()) {
        stream->Finish(caller.status(), {});
        return nullptr;
      }
      RpcStream& reading = *stream;
      auto call = (this->*make)(*caller, std::move(stream));
      reading.Read(kRequestTimeout);
      return call;
    };
  };
  const auto tenant = [this](const RpcHead& head, RpcStream& stream) {
    return Authenticate(head, stream);
  };
  RpcMethods& m = *methods;
  m["/recurve.v1.State/Export"] = stream_method(&StateService::Export);
  m["/recurve.v1.State/Import"] = stream_method(&StateService::Import);
  m["/recurve.v1.State/Snapshot"] =
      AsyncUnaryMethod<v1::SnapshotRequest, v1::StateInfo, Caller>(
          tenant,
          [this](const Caller& caller, const auto& request, const auto& done) {
            Snapshot(caller, request, done);
          });
  m["/recurve.v1.State/Fork"] =
      UnaryMethod<v1::ForkRequest, v1::ForkResponse, Caller>(
          tenant, [this](const Caller& caller, const auto& request) {
            return Fork(caller, request);
          });
  m["/recurve.v1.State/Get"] =
      UnaryMethod<v1::GetStateRequest, v1::StateInfo, Caller>(
          tenant, [this](const Caller& caller, const auto& request) {
            return Get(caller, request.state());
          });
  m["/recurve.v1.State/List"] =
      UnaryMethod<v1::ListStatesRequest, v1::ListStatesResponse, Caller>(
          tenant,
          [this](const Caller& caller, const auto&) { return List(caller); });
  m["/recurve.v1.State/Pin"] =
      AsyncUnaryMethod<v1::PinStateRequest, v1::StateInfo, Caller>(
          tenant, [this](const Caller& caller, const auto& request,
                         const auto& done) { Pin(caller, request, done); });
  m["/recurve.v1.State/Release"] =
      UnaryMethod<v1::ReleaseStateRequest, v1::ReleaseStateResponse, Caller>(
          tenant,
          [this](const Caller& caller, const auto& request)
              -> absl::StatusOr<v1::ReleaseStateResponse> {
            RECURVE_RETURN_IF_ERROR(Release(caller, request));
            return v1::ReleaseStateResponse();
          });
}

}  // namespace recurve
