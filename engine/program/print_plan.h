#ifndef RECURVE_ENGINE_PROGRAM_PRINT_PLAN_H_
#define RECURVE_ENGINE_PROGRAM_PRINT_PLAN_H_

#include <string>

#include "engine/program/plan.h"
#include "engine/program/program.h"

namespace recurve {

// A launch in words: "project [4096, 1024], 16-bit input".
std::string NameOf(const Program& program, const Plan& plan,
                   const Launch& launch);

// What a step of this form does, a line for each launch, with values and
// matrices; layers that do the same are said once. For a person.
std::string PrintPlan(const Program& program, const Plan& plan,
                      const StepForm& form);

// The plan's memory, and PrintPlan of every form of step that differs from the
// one before.
std::string PrintForms(const Program& program, const Plan& plan);

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_PRINT_PLAN_H_
