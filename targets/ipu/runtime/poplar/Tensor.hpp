// Tensors: views of variables' elements.
#pragma once
#include <algorithm>
#include <memory>

#include "Type.hpp"

namespace poplar {
namespace lite {

// Elements [begin, end) of a variable live on a tile, at a byte address.
struct Placed {
  std::size_t begin, end;
  unsigned tile;
  std::size_t address;
};

struct Variable {
  Type type;
  std::size_t elements;
  std::string name;
  std::vector<Placed> mapping;
  std::ptrdiff_t fixedAddress = -1; // bytes; -1: the runtime chooses
  std::vector<char> initial;        // of constants and initial values
};

// `count` elements of a variable from `begin`, which are elements from `at` of the tensor.
struct Region {
  Variable *variable;
  std::size_t begin, count, at;
};

inline std::size_t product(ArrayRef<std::size_t> shape) {
  std::size_t n = 1;
  for (std::size_t extent : shape)
    n *= extent;
  return n;
}

} // namespace lite

class Tensor {
public:
  Tensor() = default;
  Tensor(const Tensor &);
  Tensor(Tensor &&) noexcept;
  Tensor &operator=(const Tensor &);
  Tensor &operator=(Tensor &&) noexcept;
  ~Tensor();

  bool valid() const { return !type_.toString().empty(); }
  Type elementType() const { return type_; }
  const std::vector<std::size_t> &shape() const { return shape_; }
  std::size_t dim(unsigned i) const { return shape_.at(i); }
  unsigned rank() const { return static_cast<unsigned>(shape_.size()); }
  std::size_t numElements() const { return lite::product(shape_); }

  Tensor flatten() const;
  Tensor reshape(ArrayRef<std::size_t> shape) const;
  Tensor slice(std::size_t begin, std::size_t end, unsigned dimension = 0) const;
  Tensor slice(const Interval &region, unsigned dimension = 0) const {
    return slice(region.begin(), region.end(), dimension);
  }
  Tensor operator[](std::size_t i) const;

  // Of the runtime.
  Tensor(Type type, std::vector<std::size_t> shape, std::vector<lite::Region> regions)
      : type_(type), shape_(std::move(shape)), regions_(std::move(regions)) {}
  const std::vector<lite::Region> &regions() const { return regions_; }
  void append(const Tensor &other, std::size_t begin, std::size_t count);

private:
  Type type_;
  std::vector<std::size_t> shape_;
  std::vector<lite::Region> regions_;
};

POPLAR_LITE_COLD Tensor::Tensor(const Tensor &) = default;
POPLAR_LITE_COLD Tensor::Tensor(Tensor &&) noexcept = default;
POPLAR_LITE_COLD Tensor &Tensor::operator=(const Tensor &) = default;
POPLAR_LITE_COLD Tensor &Tensor::operator=(Tensor &&) noexcept = default;
POPLAR_LITE_COLD Tensor::~Tensor() = default;

POPLAR_LITE_COLD void Tensor::append(const Tensor &other, std::size_t begin, std::size_t count) {
  const auto &from = other.regions_;
  auto it = std::upper_bound(from.begin(), from.end(), begin,
                             [](std::size_t x, const lite::Region &r) { return x < r.at; });
  std::size_t at = regions_.empty() ? 0 : regions_.back().at + regions_.back().count;
  for (--it; count; ++it) {
    const std::size_t skip = begin - it->at, n = std::min(count, it->count - skip);
    const std::size_t first = it->begin + skip;
    if (!regions_.empty() && regions_.back().variable == it->variable &&
        regions_.back().begin + regions_.back().count == first)
      regions_.back().count += n;
    else if (n)
      regions_.push_back({it->variable, first, n, at});
    at += n, begin += n, count -= n;
  }
}

POPLAR_LITE_COLD Tensor Tensor::flatten() const { return reshape({numElements()}); }

POPLAR_LITE_COLD Tensor Tensor::reshape(ArrayRef<std::size_t> shape) const {
  if (lite::product(shape) != numElements())
    throw poplar_error("reshape changes the number of elements");
  return Tensor(type_, std::vector<std::size_t>(shape.begin(), shape.end()), regions_);
}

POPLAR_LITE_COLD Tensor Tensor::slice(std::size_t begin, std::size_t end,
                                      unsigned dimension) const {
  if (dimension >= rank() || begin > end || end > shape_[dimension])
    throw poplar_error("slice [" + std::to_string(begin) + ", " + std::to_string(end) +
                       ") out of range");
  std::vector<std::size_t> shape = shape_;
  shape[dimension] = end - begin;
  std::size_t inner = 1, outer = 1;
  for (unsigned i = 0; i < rank(); ++i)
    if (i != dimension)
      (i < dimension ? outer : inner) *= shape_[i];
  Tensor result(type_, shape, {});
  const std::size_t row = shape_[dimension] * inner;
  if (result.numElements())
    for (std::size_t o = 0; o < outer; ++o)
      result.append(*this, o * row + begin * inner, (end - begin) * inner);
  return result;
}

POPLAR_LITE_COLD Tensor Tensor::operator[](std::size_t i) const {
  Tensor row = slice(i, i + 1);
  return row.reshape(std::vector<std::size_t>(shape_.begin() + 1, shape_.end()));
}

POPLAR_LITE_COLD Tensor concat(ArrayRef<Tensor> parts, unsigned dimension = 0) {
  if (!parts.size())
    throw poplar_error("concat of nothing");
  std::vector<std::size_t> shape = parts[0].shape();
  if (dimension >= shape.size())
    throw poplar_error("concat along an axis that is not there");
  shape[dimension] = 0;
  std::size_t outer = 1;
  for (unsigned i = 0; i < dimension; ++i)
    outer *= shape[i];
  for (const Tensor &part : parts) {
    for (unsigned i = 0; i < shape.size(); ++i)
      if (i != dimension && part.shape().at(i) != shape[i])
        throw poplar_error("concat of tensors of different shapes");
    if (part.rank() != shape.size() || part.elementType() != parts[0].elementType())
      throw poplar_error("concat of tensors of different types");
    shape[dimension] += part.dim(dimension);
  }
  Tensor result(parts[0].elementType(), shape, {});
  for (std::size_t o = 0; o < outer; ++o)
    for (const Tensor &part : parts)
      if (const std::size_t n = part.numElements() / outer)
        result.append(part, o * n, n);
  return result;
}

} // namespace poplar
