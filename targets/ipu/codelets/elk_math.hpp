// Scalar arithmetic of the codelets.
namespace elk {

// bfloat16 in 16 bits, which Poplar has no type for: the upper half of a float.
static inline float fromBfloat(unsigned short x) {
  const unsigned bits = static_cast<unsigned>(x) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
static inline unsigned short toBfloat(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  if (value != value)
    return static_cast<unsigned short>(bits >> 16 | 0x40u);
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
static inline float roundBfloat(float value) { return fromBfloat(toBfloat(value)); }
static inline float roundHalf(float value) { return static_cast<float>(half(value)); }

// Eight-bit floats of four exponent and three mantissa bits, bias 7, without infinities: all bits
// set is NaN, 448 the largest number, 2^-9 the smallest. Ties round to even; what is out of range
// becomes NaN.
static inline float fromFloat8(unsigned char x) {
  const unsigned exponent = x >> 3 & 15u, mantissa = x & 7u;
  float size = static_cast<float>(mantissa) * 0.001953125f;
  if (exponent == 15u && mantissa == 7u)
    size = NAN;
  else if (exponent != 0)
    size = std::ldexp(static_cast<float>(8u + mantissa), static_cast<int>(exponent) - 10);
  return x & 128u ? -size : size;
}
static inline unsigned char toFloat8(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, 4);
  const unsigned sign = bits >> 24 & 128u;
  const float size = value < 0 ? -value : value;
  if (!(size < 464.0f)) // 464 lies between the largest number and the first that does not exist
    return static_cast<unsigned char>(size == 464.0f ? sign | 126u : sign | 127u);
  int exponent = 0;
  std::frexp(size, &exponent);
  if (exponent < -5 || size == 0)
    exponent = -5; // subnormal
  const unsigned steps = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 4 - exponent)));
  // Eight to sixteen steps of an exponent's spacing; fewer where it is the least one.
  return static_cast<unsigned char>(sign | (static_cast<unsigned>(exponent + 5) * 8u + steps));
}

// A NaN on either side wins, as in IEEE 754's maximum and minimum.
template <class T> static inline T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> static inline T minimum(T a, T b) { return a < b || a != a ? a : b; }
template <class T> static inline T signOf(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}
template <class T> static inline T divide(T a, T b) { return b == T(0) ? a : a / b; }
static inline float divide(float a, float b) { return a / b; }
template <class T> static inline T modulo(T a, T b) {
  if (b == T(0))
    return T(0);
  const T r = a % b;
  return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}
static inline float modulo(float a, float b) {
  const float r = std::fmod(a, b);
  if (r == 0)
    return std::copysign(0.0f, b);
  return (r < 0) != (b < 0) ? r + b : r;
}
template <class T> static inline T remainderOf(T a, T b) { return b == T(0) ? T(0) : a % b; }
static inline float remainderOf(float a, float b) { return std::fmod(a, b); }
template <class T> static inline T power(T a, T b) {
  T result = 1;
  for (; b > T(0); --b)
    result *= a;
  return result;
}
static inline float power(float a, float b) { return std::pow(a, b); }
static inline float sigmoid(float x) {
  const float e = std::exp(-std::fabs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

// exp(x - top), zero where x is -inf.
static inline float rescale(float x, float top) {
  return x == -INFINITY ? 0.0f : std::exp(x - (top == -INFINITY ? 0.0f : top));
}

// The maximum of scores and the sum of their exponentials beside it. Of weighted values that are
// summed along with them, those so far count `old` after an addition and the new ones `weight`.
struct LogSum {
  float top, total, old, weight;
  void add(float score, float sum = 1) {
    const float now = maximum(top, score);
    old = rescale(top, now), weight = rescale(score, now);
    total = total * old + sum * weight;
    top = now;
  }
};

} // namespace elk
