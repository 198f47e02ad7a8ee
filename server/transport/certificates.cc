#include "server/transport/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/objects.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/quote.h"

namespace recurve {
namespace {

// Renewals are due by then.
constexpr absl::Duration kSoon = absl::Hours(30 * 24);
constexpr int kMinRsaBits = 2048;
// A system's list of CAs has some 140, of which many may be old.
constexpr size_t kMaxWarnings = 8;

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* x) const {
    free(x);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;

// Nothing for an invalid time.
std::optional<absl::Time> TimeOf(const ASN1_TIME* time) {
  std::tm utc = {};
  if (ASN1_TIME_to_tm(time, &utc) != 1) return std::nullopt;
  return absl::FromTM(utc, absl::UTCTimeZone());
}

std::string Date(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string Subject(X509* certificate) {
  const std::unique_ptr<BIO, Free<BIO_free>> text(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate), 0,
                     XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return Quote(absl::string_view(data, static_cast<size_t>(size)));
}

std::string CurveOf(const EVP_PKEY* key) {
  char name[80] = "";
  size_t size = 0;
  EVP_PKEY_get_group_name(key, name, sizeof(name), &size);
  return name;
}

// The kind of the key, if clients based on BoringSSL cannot use the certificate
// because of it. `signs_only`: it signs other certificates but no handshakes,
// for which they support a few more kinds.
std::string UnsupportedKey(X509* certificate, bool signs_only) {
  const EVP_PKEY* const key = X509_get0_pubkey(certificate);
  if (key == nullptr) return "of a kind that OpenSSL does not know";
  switch (EVP_PKEY_get_base_id(key)) {
    case EVP_PKEY_RSA: {
      const int bits = EVP_PKEY_get_bits(key);
      if (bits >= kMinRsaBits) return "";
      return absl::StrCat("RSA of ", bits, " bits");
    }
    case EVP_PKEY_EC: {
      const std::string curve = CurveOf(key);
      if (curve == SN_X9_62_prime256v1 || curve == SN_secp384r1) return "";
      if (curve != SN_secp521r1) return absl::StrCat("ECDSA ", curve);
      return signs_only ? "" : "ECDSA P-521";
    }
    case EVP_PKEY_ED25519:
      return signs_only ? "" : "Ed25519";
    case EVP_PKEY_ED448:
      return "Ed448";
    case EVP_PKEY_RSA_PSS:
      return "RSA-PSS";
    default:
      return OBJ_nid2sn(EVP_PKEY_get_base_id(key));
  }
}

// Inspects one certificate after the other.
class Inspector {
 public:
  Inspector(CertificateRole role, absl::string_view name, absl::Time now)
      : role_(role), name_(name), now_(now) {}

  void Look(X509* certificate) {
    LookAtDates(certificate);
    // For a CA of clients, only they and this server have to support the kind.
    if (role_ == CertificateRole::kServer) {
      if (count_ == 0) LookAtUse(certificate);
      const std::string key =
          UnsupportedKey(certificate, /*signs_only=*/count_ > 0);
      if (!key.empty()) {
        Warn(certificate,
             absl::StrCat("has a key that clients on BoringSSL (grpcio for "
                          "Python, Chrome) cannot use: it is ",
                          key,
                          "; all can use ECDSA P-256 and P-384, and RSA of ",
                          kMinRsaBits, " bits or more"));
      }
    }
    ++count_;
  }

  CertificateReport Take() {
    if (left_out_ > 0) {
      report_.warnings.push_back(absl::StrCat(
          name_, ": ", left_out_, " more warnings of its certificates"));
    }
    return std::move(report_);
  }

 private:
  void LookAtDates(X509* certificate) {
    const auto begin = TimeOf(X509_get0_notBefore(certificate));
    const auto end = TimeOf(X509_get0_notAfter(certificate));
    if (begin && now_ < *begin) {
      Warn(certificate, absl::StrCat("is not valid before ", Date(*begin), ": ",
                                     Who(), " until then"));
    }
    if (!end) return;
    if (!report_.first_expiry || *end < *report_.first_expiry) {
      report_.first_expiry = *end;
    }
    if (now_ > *end) {
      Warn(certificate,
           absl::StrCat("has expired on ", Date(*end), ": ", Who()));
    } else if (*end - now_ < kSoon) {
      Warn(certificate, absl::StrCat("expires on ", Date(*end), ", in ",
                                     absl::ToInt64Hours(*end - now_) / 24,
                                     " days: ", Who(), " from then on"));
    }
  }

  // What the certificate of the server itself says of its use.
  void LookAtUse(X509* certificate) {
    const std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>> hosts(
        static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(
            certificate, NID_subject_alt_name, nullptr, nullptr)));
    if (hosts == nullptr) {
      Warn(certificate,
           "names no host: clients in Go and Rust, Chrome and Python's urllib3 "
           "refuse it; expected the server's names in subjectAltName");
    }
    // Both are all ones where the certificate does not restrict its use.
    if ((X509_get_key_usage(certificate) & KU_DIGITAL_SIGNATURE) == 0) {
      Warn(certificate,
           "may not sign handshakes: clients on BoringSSL (grpcio for Python, "
           "Chrome) refuse it; expected digitalSignature in keyUsage");
    }
    if ((X509_get_extended_key_usage(certificate) &
         (XKU_SSL_SERVER | XKU_ANYEKU)) == 0) {
      Warn(certificate,
           "is not for servers: clients on OpenSSL, in Go and Rust, and Chrome "
           "refuse it; expected serverAuth in extendedKeyUsage");
    }
    constexpr int kIsCa = 1;
    if (X509_check_ca(certificate) == kIsCa) {
      Warn(certificate,
           "is that of a CA: clients in Rust refuse it; expected CA:FALSE in "
           "basicConstraints");
    }
  }

  absl::string_view Who() const {
    return role_ == CertificateRole::kServer
               ? "clients that check certificates refuse it"
               : "clients with certificates that it has signed do not get in";
  }

  void Warn(X509* certificate, absl::string_view problem) {
    if (report_.warnings.size() >= kMaxWarnings) {
      ++left_out_;
      return;
    }
    report_.warnings.push_back(absl::StrCat(
        name_, ": the certificate of ", Subject(certificate), " ", problem));
  }

  const CertificateRole role_;
  const absl::string_view name_;
  const absl::Time now_;
  CertificateReport report_;
  int count_ = 0;
  int left_out_ = 0;
};

}  // namespace

CertificateReport InspectCertificates(CertificateRole role,
                                      absl::string_view name,
                                      absl::string_view pem, absl::Time now) {
  Inspector inspector(role, name, now);
  const std::unique_ptr<BIO, Free<BIO_free>> text(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  while (text != nullptr) {
    const Certificate certificate(
        PEM_read_bio_X509_AUX(text.get(), nullptr, nullptr, nullptr));
    if (certificate == nullptr) break;
    inspector.Look(certificate.get());
  }
  ERR_clear_error();  // from reading past the last block
  return inspector.Take();
}

}  // namespace recurve
