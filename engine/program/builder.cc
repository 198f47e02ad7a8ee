#include "engine/program/builder.h"

#include "base/check.h"

namespace recurve {
namespace {

// Appends `item`; returns its index.
template <typename T>
int32_t Append(T item, std::vector<T>* items) {
  items->push_back(std::move(item));
  return static_cast<int32_t>(items->size()) - 1;
}

}  // namespace

MatrixId ProgramBuilder::AddMatrix(std::vector<MatrixPart> parts, bool padded) {
  return {Append(MatrixSource{std::move(parts), padded}, &program_.matrices)};
}

VectorId ProgramBuilder::AddVector(std::vector<float> values) {
  return {Append(std::move(values), &program_.vectors)};
}

TableId ProgramBuilder::AddTable(TensorView table) {
  return {Append(std::move(table), &program_.tables)};
}

PositionId ProgramBuilder::AddPosition(const PositionConfig& position) {
  for (size_t i = 0; i < program_.positions.size(); ++i) {
    if (program_.positions[i] == position) return {static_cast<int32_t>(i)};
  }
  return {Append(position, &program_.positions)};
}

PagesId ProgramBuilder::AddPages(PagesSource pages) {
  return {Append(pages, &program_.pages)};
}

StateId ProgramBuilder::AddState(StateSource state) {
  return {Append(state, &program_.states)};
}

ValueId ProgramBuilder::AddValue(Value value) {
  return {Append(std::move(value), &program_.values)};
}

ValueId ProgramBuilder::AddLasting(std::string name, int64_t cols) {
  Value value;
  value.name = std::move(name);
  value.cols = cols;
  return AddValue(std::move(value));
}

void ProgramBuilder::BeginRegion(std::string place) {
  ++region_;
  place_ = std::move(place);
}

ValueId ProgramBuilder::AddValue(std::string name, int64_t cols, int64_t pieces,
                                 bool padded) {
  RECURVE_CHECK(region_ > 0 && cols % pieces == 0);
  Value value;
  value.name = std::move(name);
  value.cols = cols;
  value.pieces = pieces;
  value.padded = padded;
  value.region = region_;
  return AddValue(std::move(value));
}

ValueId ProgramBuilder::AddOver(std::string name, int64_t cols, ValueId other) {
  const Value& under = program_.values[other.value];
  RECURVE_CHECK(under.region == region_ && cols <= under.cols);
  Value value;
  value.name = std::move(name);
  value.cols = cols;
  value.over = other;
  value.region = region_;
  return AddValue(std::move(value));
}

void ProgramBuilder::Add(Operation operation) {
  program_.operations.push_back(std::move(operation));
  program_.places.push_back(place_);
}

}  // namespace recurve
