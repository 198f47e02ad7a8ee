#include "server/transport/tls_files.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/telemetry/metrics.h"
#include "server/transport/certificates.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

// After a failure: the files may be partly renewed.
constexpr std::chrono::seconds kRetry{1};
constexpr std::chrono::hours kInspectionInterval{24};
// A system's complete list of CAs is a fifth of this.
constexpr size_t kMaxTlsFileBytes = 1 << 20;

absl::Status Unusable(absl::string_view flag, const std::string& file,
                      absl::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " ", file, " cannot be used: ", reason));
}

absl::Status UnusableByOpenSsl(absl::string_view flag,
                               const std::string& file) {
  // The first is the cause, the last may be "PEM lib".
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  ERR_clear_error();
  return Unusable(flag, file, reason != nullptr ? reason : "not a PEM file");
}

absl::StatusOr<std::string> ReadFile(absl::string_view flag,
                                     const std::string& path) {
  if (path.empty()) return std::string();
  // Opening a pipe would wait for a writer.
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) &&
      !std::filesystem::is_regular_file(path, ignored)) {
    return Unusable(flag, path, "it is no regular file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return Unusable(flag, path, std::strerror(errno));
  std::string text(kMaxTlsFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Unusable(flag, path, "it cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxTlsFileBytes) {
    return Unusable(
        flag, path,
        absl::StrCat("it has more than ", kMaxTlsFileBytes, " bytes"));
  }
  return text;
}

// The path of a descriptor's file, for functions that open files by name.
std::string PathOf(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

void CloseFile(int fd) {
  if (fd >= 0) close(fd);
}

// -1 with errno set. Hardened kernels only allow memory that cannot be
// executed; kernels before 6.3 do not know that flag.
int MakeCopy(absl::string_view text) {
#ifdef MFD_NOEXEC_SEAL
  constexpr unsigned int kNoExec = MFD_NOEXEC_SEAL;
#else
  constexpr unsigned int kNoExec = 0x0008U;
#endif
  int fd = memfd_create("recurve-tls", MFD_CLOEXEC | kNoExec);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("recurve-tls", MFD_CLOEXEC);
  for (size_t done = 0; fd >= 0 && done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      close(fd);
      return -1;
    }
    done += static_cast<size_t>(written);
  }
  return fd;
}

// Chooses HTTP/2 if the client offers it; gRPC's clients require that.
int SelectHttp2(SSL*, const unsigned char** out, unsigned char* out_size,
                const unsigned char* in, unsigned int in_size, void*) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_size, kHttp2, sizeof(kHttp2), in,
                            in_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

// A key with a passphrase cannot be used: there is no one to ask.
int NoPassphrase(char*, int, int, void*) { return 0; }

}  // namespace

bool TlsFiles::Texts::operator==(const Texts& other) const {
  return cert == other.cert && key == other.key && client_ca == other.client_ca;
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Load(
    const TransportOptions& o, Metrics* metrics) {
  if (o.tls_cert.empty() != o.tls_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-", o.tls_cert.empty() ? "key" : "cert",
                     " needs --tls-", o.tls_cert.empty() ? "cert" : "key"));
  }
  if (o.tls_cert.empty()) {
    if (o.tls_client_ca.empty()) return std::unique_ptr<TlsFiles>();
    return absl::InvalidArgumentError(
        "--tls-client-ca needs --tls-cert and --tls-key");
  }
  auto files = std::unique_ptr<TlsFiles>(new TlsFiles(o, metrics));
  RECURVE_ASSIGN_OR_RETURN(const Texts texts, files->Read());
  RECURVE_RETURN_IF_ERROR(files->Use(texts));
  files->next_read_ = std::chrono::steady_clock::now() + o.tls_reload;
  return files;
}

absl::StatusOr<TlsFiles::Texts> TlsFiles::Read() const {
  Texts texts;
  RECURVE_ASSIGN_OR_RETURN(texts.cert, ReadFile("tls-cert", options_.tls_cert));
  RECURVE_ASSIGN_OR_RETURN(texts.key, ReadFile("tls-key", options_.tls_key));
  RECURVE_ASSIGN_OR_RETURN(texts.client_ca,
                           ReadFile("tls-client-ca", options_.tls_client_ca));
  return texts;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> TlsFiles::MakeContext(
    const Copies& copies, Protocol protocol) const {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()),
                                   SSL_CTX_free);
  if (context == nullptr) {
    return absl::InternalError("OpenSSL gives no context");
  }
  SSL_CTX* const c = context.get();
  SSL_CTX_set_default_passwd_cb(c, NoPassphrase);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(c, PathOf(copies.cert).c_str()) != 1) {
    return UnusableByOpenSsl("tls-cert", options_.tls_cert);
  }
  // A key is compared with a certificate of its own type when it is loaded;
  // with one of another type, only on request.
  if (SSL_CTX_use_PrivateKey_file(c, PathOf(copies.key).c_str(),
                                  SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(c) != 1) {
    return UnusableByOpenSsl("tls-key", options_.tls_key);
  }
  if (!options_.tls_client_ca.empty()) {
    if (SSL_CTX_load_verify_locations(c, PathOf(copies.client_ca).c_str(),
                                      nullptr) != 1) {
      return UnusableByOpenSsl("tls-client-ca", options_.tls_client_ca);
    }
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       nullptr);
  }
  SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
  if (protocol == Protocol::kHttp2) {
    SSL_CTX_set_alpn_select_cb(c, SelectHttp2, nullptr);
  }
  // No resumption: every connection presents certificates, also after a reload.
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  // Frees buffers while they are unused: thousands of connections may be idle.
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
  return context;
}

absl::Status TlsFiles::Use(const Texts& texts) {
  Copies fresh;
  const absl::Cleanup close_fresh = [&] {
    for (const int fd : {fresh.cert, fresh.key, fresh.client_ca}) CloseFile(fd);
  };
  fresh.cert = MakeCopy(texts.cert);
  fresh.key = MakeCopy(texts.key);
  fresh.client_ca = MakeCopy(texts.client_ca);
  if (fresh.cert < 0 || fresh.key < 0 || fresh.client_ca < 0) {
    return absl::InternalError(absl::StrCat(
        "the TLS files cannot be copied to memory: ", std::strerror(errno)));
  }
  if (access(PathOf(fresh.cert).c_str(), R_OK) != 0) {
    return absl::FailedPreconditionError(
        "TLS needs /proc, where the server keeps copies of its files");
  }
  Contexts contexts;
  for (const Protocol protocol : {Protocol::kHttp1, Protocol::kHttp2}) {
    RECURVE_ASSIGN_OR_RETURN(contexts[static_cast<size_t>(protocol)],
                             MakeContext(fresh, protocol));
  }
  used_ = texts;
  {
    MutexLock lock(&mu_);
    contexts_ = std::move(contexts);
  }
  Inspect();
  return absl::OkStatus();
}

void TlsFiles::Inspect() {
  next_inspection_ = std::chrono::steady_clock::now() + kInspectionInterval;
  const auto look = [this](CertificateRole role, const char* flag,
                           const char* label, const std::string& file,
                           const std::string& text) {
    if (file.empty()) return;
    const CertificateReport report = InspectCertificates(
        role, absl::StrCat("--", flag, " ", file), text, absl::Now());
    for (const std::string& warning : report.warnings) {
      spdlog::warn("{}", warning);
    }
    if (metrics_ != nullptr && report.first_expiry) {
      metrics_->SetTlsExpiry(label, absl::ToUnixSeconds(*report.first_expiry));
    }
  };
  look(CertificateRole::kServer, "tls-cert", "cert", options_.tls_cert,
       used_.cert);
  look(CertificateRole::kClientCas, "tls-client-ca", "client_ca",
       options_.tls_client_ca, used_.client_ca);
}

std::shared_ptr<SSL_CTX> TlsFiles::Context(Protocol protocol) const {
  MutexLock lock(&mu_);
  return contexts_[static_cast<size_t>(protocol)];
}

void TlsFiles::ReloadIfDue() {
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_inspection_) Inspect();
  if (now < next_read_) return;
  const absl::StatusOr<Texts> texts = Read();
  const bool changed = texts.ok() && !(*texts == used_);
  const absl::Status status = !texts.ok() ? texts.status()
                              : changed   ? Use(*texts)
                                          : absl::OkStatus();
  next_read_ =
      now + (status.ok()
                 ? options_.tls_reload
                 : std::min(std::chrono::seconds(options_.tls_reload), kRetry));
  if (status.ok()) {
    problem_.reset();
    if (changed) spdlog::info("TLS files: new ones are in use");
    return;
  }
  std::string problem(status.message());
  if (problem == problem_) return;
  spdlog::error("the TLS files stay as they were: {}", problem);
  problem_ = std::move(problem);
}

}  // namespace recurve
