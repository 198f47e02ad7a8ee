#include "base/byte_size.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace recurve {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", int64_t{1} << 10},
    {"Ki", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"Mi", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"Gi", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
    {"Ti", int64_t{1} << 40},
    {"kB", 1'000},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
};

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text, int64_t least) {
  const absl::Status error = absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a size; expected bytes", least > 0 ? " above 0" : "",
      ", like 1500, 512MiB, 24Gi or 80GB"));
  size_t digits = text.find_first_not_of("0123456789.");
  if (digits == absl::string_view::npos) digits = text.size();
  const absl::string_view number = text.substr(0, digits);
  const absl::string_view name = text.substr(digits);
  for (const Unit& unit : kUnits) {
    if (name != unit.name) continue;
    int64_t whole = 0;
    int64_t bytes = 0;
    if (absl::SimpleAtoi(number, &whole)) {
      if (__builtin_mul_overflow(whole, unit.bytes, &bytes)) return error;
    } else {
      double value = 0;
      if (unit.bytes == 1 || !absl::SimpleAtod(number, &value)) return error;
      value *= static_cast<double>(unit.bytes);
      if (!(value < 0x1p63)) return error;
      bytes = static_cast<int64_t>(value);
    }
    if (bytes < least) return error;
    return bytes;
  }
  return error;
}

std::string HumanBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would round to "1024.0".
  while (value >= 1023.95 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kNames[unit]);
}

std::string ExactBytes(int64_t bytes) {
  if (bytes < 1024) return HumanBytes(bytes);
  return absl::StrCat(bytes, " (", HumanBytes(bytes), ")");
}

}  // namespace recurve
