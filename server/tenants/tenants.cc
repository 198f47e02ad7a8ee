#include "server/tenants/tenants.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kv_cache/cache_spec.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr std::chrono::milliseconds kLongestRetry{86'400'000};
// Retry hint if it is unknown when streams and pages will be free.
constexpr std::chrono::milliseconds kInUseRetry{1'000};

int64_t PagesOf(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The key in "Bearer KEY", after one or more spaces (RFC 9110, 11.4); nothing
// for any other text.
absl::string_view KeyOf(absl::string_view value) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(value, kScheme)) return "";
  value.remove_prefix(kScheme.size());
  return value.substr(std::min(value.find_first_not_of(' '), value.size()));
}

}  // namespace

Tenant::Tenant(std::string name, uint32_t flow, Metrics* metrics)
    : name_(std::move(name)), flow_(flow), metrics_(metrics) {}

bool Tenant::admin() const {
  MutexLock lock(&mu_);
  return admin_;
}

Flow Tenant::flow() const {
  MutexLock lock(&mu_);
  return {flow_, static_cast<double>(limits_.weight), part_};
}

absl::Status Tenant::CheckAdmin(absl::string_view what) {
  if (admin()) return absl::OkStatus();
  metrics_->OnTenantRefused(name_, "admin");
  return absl::PermissionDeniedError(
      absl::StrCat("tenant ", name_, " is no admin; ", what));
}

int64_t Tenant::max_state_bytes() const {
  MutexLock lock(&mu_);
  return limits_.max_state_bytes.value_or(0);
}

absl::Status Tenant::CheckPriority(int32_t priority) {
  MutexLock lock(&mu_);
  if (priority <= limits_.max_priority) return absl::OkStatus();
  metrics_->OnTenantRefused(name_, "priority");
  return absl::PermissionDeniedError(absl::StrCat(
      "priority is ", priority, "; tenant ", name_, " may ask for at most ",
      limits_.max_priority, ", its max_priority"));
}

Tenant::Usage Tenant::usage() const {
  MutexLock lock(&mu_);
  return {streams_, pages_, prompt_tokens_.load(), generated_tokens_.load()};
}

void Tenant::Configure(const TenantEntry& entry, int64_t weights) {
  MutexLock lock(&mu_);
  part_ =
      static_cast<double>(entry.limits.weight) / static_cast<double>(weights);
  admin_ = entry.admin;
  limits_ = entry.limits;
  const auto now = std::chrono::steady_clock::now();
  if (!limits_.rate) {
    bucket_.reset();
  } else if (bucket_) {
    bucket_->SetLimits(limits_.rate->tokens_per_second, limits_.rate->burst,
                       now);
  } else {
    bucket_.emplace(limits_.rate->tokens_per_second, limits_.rate->burst, now);
  }
}

absl::Status Tenant::OpenStreams(int64_t count,
                                 std::chrono::milliseconds* retry_after,
                                 int64_t own) {
  MutexLock lock(&mu_);
  if (limits_.max_streams && count > *limits_.max_streams - streams_) {
    *retry_after =
        count + own > *limits_.max_streams ? kNeverRetry : kInUseRetry;
    metrics_->OnTenantRefused(name_, "streams");
    return absl::ResourceExhaustedError(absl::StrCat(
        "tenant ", name_, " has ", streams_, " streams open",
        count > 1 ? absl::StrCat(" and asks for ", count, " more") : "",
        "; its max_streams is ", *limits_.max_streams));
  }
  streams_ += count;
  metrics_->AddTenantStreams(name_, static_cast<int>(count));
  return absl::OkStatus();
}

void Tenant::CloseStream() {
  MutexLock lock(&mu_);
  --streams_;
  metrics_->AddTenantStreams(name_, -1);
}

absl::Status Tenant::TakePages(int64_t count, int64_t total,
                               std::chrono::milliseconds* retry_after) {
  MutexLock lock(&mu_);
  // Current usage may exceed limits that were lowered since.
  if (count > 0 && limits_.max_pages && count > *limits_.max_pages - pages_) {
    *retry_after = total > *limits_.max_pages ? kNeverRetry : kInUseRetry;
    metrics_->OnTenantRefused(name_, "pages");
    return absl::ResourceExhaustedError(
        absl::StrCat("tenant ", name_, " has ", pages_, " pages of ",
                     kPageTokens, " tokens and asks for ", count,
                     " more; its max_pages is ", *limits_.max_pages));
  }
  pages_ += count;
  metrics_->AddTenantPages(name_, static_cast<double>(count));
  return absl::OkStatus();
}

void Tenant::GivePages(int64_t count) {
  MutexLock lock(&mu_);
  pages_ -= count;
  metrics_->AddTenantPages(name_, -static_cast<double>(count));
}

absl::StatusOr<int64_t> Tenant::TakeTokens(
    int64_t count, std::chrono::milliseconds* retry_after) {
  MutexLock lock(&mu_);
  if (!bucket_) return 0;
  const auto now = std::chrono::steady_clock::now();
  if (bucket_->Take(count, now)) return count;
  *retry_after = std::clamp(bucket_->Wait(count, now),
                            std::chrono::milliseconds(1), kLongestRetry);
  metrics_->OnTenantRefused(name_, "tokens");
  return absl::ResourceExhaustedError(
      absl::StrCat("tenant ", name_, " has no budget for ", count,
                   " tokens (prompt and maximum output); its "
                   "tokens_per_second is ",
                   limits_.rate->tokens_per_second, " with a token_burst of ",
                   limits_.rate->burst));
}

void Tenant::GiveTokens(int64_t count) {
  MutexLock lock(&mu_);
  if (bucket_) bucket_->Give(count);
}

StreamTicket& StreamTicket::operator=(StreamTicket&& other) noexcept {
  if (this != &other) {
    Close();
    tenant_ = std::move(other.tenant_);
    charged_ = std::exchange(other.charged_, 0);
    unused_ = std::exchange(other.unused_, 0);
    before_ = std::exchange(other.before_, 0);
    tokens_ = std::exchange(other.tokens_, 0);
    pages_ = std::exchange(other.pages_, 0);
    admitted_ = other.admitted_;
  }
  return *this;
}

absl::Status StreamTicket::Charge(int64_t append, int64_t generate,
                                  std::chrono::milliseconds* retry_after) {
  return ChargeAll({this}, {{append, generate}}, retry_after);
}

absl::Status StreamTicket::ChargeAll(absl::Span<StreamTicket* const> tickets,
                                     absl::Span<const Cost> costs,
                                     std::chrono::milliseconds* retry_after) {
  if (tickets.empty() || tickets[0]->tenant_ == nullptr) {
    return absl::OkStatus();
  }
  Tenant& tenant = *tickets[0]->tenant_;
  int64_t pages = 0;
  int64_t total_pages = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < tickets.size(); ++i) {
    StreamTicket& ticket = *tickets[i];
    ticket.Settle();
    const int64_t taken = costs[i].append + costs[i].generate;
    tokens += taken;
    const int64_t total = PagesOf(ticket.tokens_ + taken);
    total_pages += total;
    pages += total - ticket.pages_;
  }
  RECURVE_RETURN_IF_ERROR(tenant.TakePages(pages, total_pages, retry_after));
  const absl::StatusOr<int64_t> charged =
      tenant.TakeTokens(tokens, retry_after);
  if (!charged.ok()) {
    tenant.GivePages(pages);
    return charged.status();
  }
  for (size_t i = 0; i < tickets.size(); ++i) {
    StreamTicket& ticket = *tickets[i];
    const int64_t taken = costs[i].append + costs[i].generate;
    ticket.before_ = ticket.tokens_;
    ticket.tokens_ += taken;
    ticket.pages_ = PagesOf(ticket.tokens_);
    ticket.charged_ = *charged > 0 ? taken : 0;
    ticket.unused_ = costs[i].generate;
    tenant.CountPrompt(costs[i].append);
    if (!std::exchange(ticket.admitted_, true)) {
      tenant.metrics().OnTenantAdmitted(tenant.name());
    }
  }
  return absl::OkStatus();
}

void StreamTicket::ShrinkTo(int64_t tokens) {
  tokens_ = tokens;
  const int64_t spare = pages_ - PagesOf(tokens);
  if (spare > 0) tenant_->GivePages(spare);
  pages_ -= std::max<int64_t>(spare, 0);
}

void StreamTicket::Settle() {
  if (tenant_ == nullptr) return;
  if (charged_ > 0) tenant_->GiveTokens(unused_);
  ShrinkTo(tokens_ - unused_);
  before_ = tokens_;
  charged_ = unused_ = 0;
}

void StreamTicket::RollBack(int64_t tokens) {
  if (tenant_ == nullptr) return;
  Settle();
  ShrinkTo(std::min(tokens, tokens_));
}

void StreamTicket::Refund() {
  if (tenant_ == nullptr) return;
  if (charged_ > 0) tenant_->GiveTokens(charged_);
  tenant_->CountPrompt(before_ - (tokens_ - unused_));
  ShrinkTo(before_);
  charged_ = unused_ = 0;
}

void StreamTicket::Close() {
  if (tenant_ == nullptr) return;
  Settle();
  ShrinkTo(0);
  tenant_->CloseStream();
  tenant_.reset();
}

absl::StatusOr<std::unique_ptr<Tenants>> Tenants::Load(const std::string& path,
                                                       Metrics* metrics) {
  auto tenants = std::unique_ptr<Tenants>(new Tenants(path, metrics));
  RECURVE_ASSIGN_OR_RETURN(tenants->version_, tenants->Version());
  RECURVE_RETURN_IF_ERROR(tenants->Read());
  return tenants;
}

absl::StatusOr<Tenants::FileVersion> Tenants::Version() const {
  struct stat info;
  if (stat(path_.c_str(), &info) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--api-keys-file ", path_, " cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-keys-file ", path_, " is not a file"));
  }
  const auto nanoseconds = [](const timespec& t) {
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  };
  return FileVersion(info.st_dev, info.st_ino, info.st_size,
                     nanoseconds(info.st_mtim), nanoseconds(info.st_ctim));
}

absl::Status Tenants::Read() {
  std::ifstream file(path_, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-keys-file ", path_, " cannot be read"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--api-keys-file ", path_, " has more than ", kMaxFileBytes, " bytes"));
  }
  const auto entries = ParseApiKeys(text);
  if (!entries.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--api-keys-file ", path_, ", ", entries.status().message()));
  }
  int64_t weights = 0;
  for (const TenantEntry& entry : *entries) weights += entry.limits.weight;
  auto keys = std::make_shared<std::vector<Key>>();
  for (const TenantEntry& entry : *entries) {
    std::shared_ptr<Tenant>& tenant = all_[entry.name];
    if (tenant == nullptr) {
      // Flow 0 is for a server without keys.
      tenant = std::make_shared<Tenant>(
          entry.name, static_cast<uint32_t>(all_.size()), metrics_);
    }
    tenant->Configure(entry, weights);
    for (const KeyDigest& digest : entry.keys)
      keys->push_back({digest, tenant});
  }
  spdlog::info("API keys: {} keys of {} tenants", keys->size(),
               entries->size());
  MutexLock lock(&mu_);
  keys_ = std::move(keys);
  return absl::OkStatus();
}

void Tenants::ReloadIfChanged() {
  const absl::StatusOr<FileVersion> now = Version();
  const std::optional<FileVersion> version =
      now.ok() ? std::optional(*now) : std::nullopt;
  if (version == version_) return;
  version_ = version;
  const absl::Status status = now.ok() ? Read() : now.status();
  if (!status.ok()) {
    spdlog::error("the API keys stay as they were: {}",
                  std::string(status.message()));
  }
}

std::shared_ptr<Tenant> Tenants::Find(const std::string& name) const {
  MutexLock lock(&mu_);
  for (const Key& key : *keys_) {
    if (key.tenant->name() == name) return key.tenant;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<Tenant>> Tenants::Authenticate(
    absl::Span<const std::string> headers, absl::string_view entry) {
  const absl::string_view text =
      headers.size() == 1 ? KeyOf(headers[0]) : absl::string_view();
  if (text.empty()) {
    metrics_->OnUnauthenticated("missing");
    return absl::UnauthenticatedError(
        absl::StrCat("an API key is needed; expected one ", entry,
                     " 'authorization: Bearer KEY'"));
  }
  const KeyDigest digest = DigestOfKey(text);
  std::shared_ptr<const std::vector<Key>> keys;
  {
    MutexLock lock(&mu_);
    keys = keys_;
  }
  // Checks all keys, each in constant time, so that the time reveals nothing.
  const Key* found = nullptr;
  for (const Key& key : *keys) {
    if (CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0) {
      found = &key;
    }
  }
  if (found == nullptr) {
    metrics_->OnUnauthenticated("unknown");
    return absl::UnauthenticatedError("the API key is not known");
  }
  return found->tenant;
}

}  // namespace recurve
