// Element types and intervals. Part of a small implementation of the Poplar API for the host: see
// Lite.hpp for what it is and what it checks.
#pragma once
#define POPLAR_LITE 1

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

// A 16-bit float: storage only, arithmetic happens in float, stores round to nearest even.
struct half {
  std::uint16_t bits = 0;
  half() = default;
  half(float value) {
    std::uint32_t f;
    std::memcpy(&f, &value, 4);
    const std::uint32_t sign = f >> 16 & 0x8000u, magnitude = f & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {
      bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude >= 0x38800000u) {
      const std::uint32_t rebased = magnitude - 0x38000000u;
      bits = static_cast<std::uint16_t>(sign | (rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
    } else {
      // Subnormal: adding 0.5 aligns the mantissa, and the hardware does the rounding.
      const std::uint32_t half_bits = 0x3f000000u;
      float x, offset;
      std::memcpy(&x, &magnitude, 4);
      std::memcpy(&offset, &half_bits, 4);
      x += offset;
      std::memcpy(&f, &x, 4);
      bits = static_cast<std::uint16_t>(sign | (f - half_bits));
    }
  }
  operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
    std::uint32_t f = bits & 0x3ffu;
    if (exponent == 31) {
      f = sign | 0x7f800000u | f << 13;
    } else if (exponent) {
      f = sign | (exponent + 112) << 23 | f << 13;
    } else {
      const float value = static_cast<float>(f) * 5.9604644775390625e-8f;
      return sign ? -value : value;
    }
    float value;
    std::memcpy(&value, &f, 4);
    return value;
  }
};

namespace poplar {

// Raised for every use of the API, and every step of a program, that the machine forbids.
struct poplar_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Type {
public:
  constexpr Type(const char *name = "", std::size_t bytes = 0) : name_(name), bytes_(bytes) {}
  std::string toString() const { return name_; }
  constexpr std::size_t bytes() const { return bytes_; }
  bool operator==(const Type &other) const { return std::strcmp(name_, other.name_) == 0; }
  bool operator!=(const Type &other) const { return !(*this == other); }

private:
  const char *name_;
  std::size_t bytes_;
};

inline constexpr Type BOOL{"bool", 1}, CHAR{"char", 1}, SIGNED_CHAR{"signed char", 1},
    UNSIGNED_CHAR{"unsigned char", 1}, SHORT{"short", 2}, UNSIGNED_SHORT{"unsigned short", 2},
    INT{"int", 4}, UNSIGNED_INT{"unsigned int", 4}, LONGLONG{"long long", 8},
    UNSIGNED_LONGLONG{"unsigned long long", 8}, HALF{"half", 2}, FLOAT{"float", 4};

template <class T> struct equivalent_device_type;
#define POPLAR_LITE_TYPE(T, VALUE)                                                                \
  template <> struct equivalent_device_type<T> {                                                  \
    static constexpr Type value = VALUE;                                                          \
  }
POPLAR_LITE_TYPE(bool, BOOL);
POPLAR_LITE_TYPE(char, CHAR);
POPLAR_LITE_TYPE(signed char, SIGNED_CHAR);
POPLAR_LITE_TYPE(unsigned char, UNSIGNED_CHAR);
POPLAR_LITE_TYPE(short, SHORT);
POPLAR_LITE_TYPE(unsigned short, UNSIGNED_SHORT);
POPLAR_LITE_TYPE(int, INT);
POPLAR_LITE_TYPE(unsigned, UNSIGNED_INT);
POPLAR_LITE_TYPE(long long, LONGLONG);
POPLAR_LITE_TYPE(unsigned long long, UNSIGNED_LONGLONG);
POPLAR_LITE_TYPE(half, HALF);
POPLAR_LITE_TYPE(float, FLOAT);
#undef POPLAR_LITE_TYPE

// [begin, end) of a tensor's flattened elements.
class Interval {
public:
  Interval(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return end_; }
  std::size_t size() const { return end_ - begin_; }

private:
  std::size_t begin_, end_;
};

// Out of line on purpose: a program creates thousands of temporary objects, and inlining their
// creation and destruction everywhere would make it slow to compile.
#define POPLAR_LITE_COLD __attribute__((weak))

// A name for messages.
struct DebugContext {
  std::string name;
  DebugContext(const char *name = "");
  DebugContext(std::string name);
  ~DebugContext();
};
POPLAR_LITE_COLD DebugContext::DebugContext(const char *name) : name(name) {}
POPLAR_LITE_COLD DebugContext::DebugContext(std::string name) : name(std::move(name)) {}
POPLAR_LITE_COLD DebugContext::~DebugContext() = default;

// A borrowed list.
template <class T> class ArrayRef {
public:
  ArrayRef(std::initializer_list<T> list) : size_(list.size()) { data_ = list.begin(); }
  ArrayRef(const std::vector<T> &list) : data_(list.data()), size_(list.size()) {}
  const T *begin() const { return data_; }
  const T *end() const { return data_ + size_; }
  std::size_t size() const { return size_; }
  const T &operator[](std::size_t i) const { return data_[i]; }

private:
  const T *data_;
  std::size_t size_;
};

} // namespace poplar
