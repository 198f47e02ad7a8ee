#include "engine/program/program.h"

#include "engine/program/sequence_operation.h"

namespace recurve {
namespace {

struct Namer {
  std::string operator()(const EmbedOp&) const { return "embed"; }
  std::string operator()(const FillOp&) const { return "fill"; }
  std::string operator()(const NormOp&) const { return "norm"; }
  std::string operator()(const AddOp&) const { return "add"; }
  std::string operator()(const ProjectOp&) const { return "project"; }
  std::string operator()(const GluOp&) const { return "gate"; }
  std::string operator()(const GatedNormOp&) const { return "gated norm"; }
  std::string operator()(const ExpandOp&) const { return "expand factors"; }
  std::string operator()(const SequenceOp& op) const {
    return std::string(op.operation->name());
  }
  std::string operator()(const HeadOp&) const { return "head"; }
};

struct Reader {
  using Slices = std::vector<Slice>;
  Slices operator()(const EmbedOp&) const { return {}; }
  Slices operator()(const FillOp&) const { return {}; }
  Slices operator()(const NormOp& op) const { return {op.in}; }
  Slices operator()(const AddOp& op) const { return {op.in, op.out}; }
  Slices operator()(const ProjectOp& op) const {
    return op.add ? Slices{op.in, op.out} : Slices{op.in};
  }
  Slices operator()(const GluOp& op) const { return {op.in}; }
  Slices operator()(const GatedNormOp& op) const { return {op.in, op.gate}; }
  Slices operator()(const ExpandOp& op) const { return {op.a, op.b}; }
  Slices operator()(const SequenceOp& op) const {
    return op.operation->inputs();
  }
  Slices operator()(const HeadOp& op) const { return {op.in}; }
};

struct Writer {
  Slice operator()(const SequenceOp& op) const {
    return op.operation->output();
  }
  Slice operator()(const HeadOp&) const { return {}; }
  template <typename Op>
  Slice operator()(const Op& op) const {
    return op.out;
  }
};

}  // namespace

std::string NameOf(const Operation& operation) {
  return std::visit(Namer(), operation);
}

std::vector<Slice> ReadsOf(const Operation& operation) {
  return std::visit(Reader(), operation);
}

Slice OutputOf(const Operation& operation) {
  return std::visit(Writer(), operation);
}

}  // namespace recurve
