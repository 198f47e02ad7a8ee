#ifndef RECURVE_BASE_STATUS_MACROS_H_
#define RECURVE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Abseil ships these only in releases newer than the distributions we build on.

// Returns from the calling function when `expr` is not OK.
#define RECURVE_RETURN_IF_ERROR(expr)                  \
  do {                                                 \
    ::absl::Status recurve_status_ = (expr);           \
    if (!recurve_status_.ok()) return recurve_status_; \
  } while (false)

// `lhs` is assigned the value of the StatusOr `expr`, or the function returns
// its error. `lhs` may declare a variable.
// NOLINTBEGIN(bugprone-macro-parentheses): lhs may be a declaration.
#define RECURVE_ASSIGN_OR_RETURN(lhs, expr) \
  RECURVE_ASSIGN_OR_RETURN_(RECURVE_CONCAT_(recurve_or_, __LINE__), lhs, expr)
#define RECURVE_ASSIGN_OR_RETURN_(var, lhs, expr) \
  auto var = (expr);                              \
  if (!var.ok()) return std::move(var).status();  \
  lhs = std::move(var).value()
// NOLINTEND(bugprone-macro-parentheses)
#define RECURVE_CONCAT_(a, b) RECURVE_CONCAT_INNER_(a, b)
#define RECURVE_CONCAT_INNER_(a, b) a##b

#endif  // RECURVE_BASE_STATUS_MACROS_H_
