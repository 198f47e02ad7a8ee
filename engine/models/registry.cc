#include "engine/models/registry.h"

#include "absl/strings/str_cat.h"
#include "engine/models/families.h"

namespace recurve {
namespace {

struct Family {
  const char* name;
  const char* recognised_by;
  bool (*matches)(const Checkpoint&);
  absl::StatusOr<ModelDefinition> (*read)(const Checkpoint&);
};

constexpr Family kFamilies[] = {
    {"recurve", "model_type \"recurve\"", IsRecurve, ReadRecurve},
};

}  // namespace

absl::StatusOr<ModelDefinition> ReadModel(const Checkpoint& checkpoint) {
  std::string supported;
  for (const Family& family : kFamilies) {
    if (family.matches(checkpoint)) return family.read(checkpoint);
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", family.name,
                    " (", family.recognised_by, ")");
  }
  const absl::StatusOr<std::string> model_type =
      checkpoint.config().StringOr("model_type", "");
  return absl::InvalidArgumentError(absl::StrCat(
      checkpoint.config().file(), ": model_type is \"",
      model_type.ok() ? *model_type : "?",
      "\", which is no supported model family; supported: ", supported));
}

}  // namespace recurve
