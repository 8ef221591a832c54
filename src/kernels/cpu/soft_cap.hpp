// The soft-cap of scores and logits. Included inside an ISA namespace after a Simd struct.

/// cap * tanh(x / cap). tanh as x P(x^2) / Q(x^2), the rational minimax approximation of degree 13
/// over 6 that is exact to a few ulp on [-7.9, 7.9], beyond which float32 tanh is 1.
struct SoftCap {
  float cap, inverse;
  POLYHEAD_INLINE Simd::V operator()(Simd::V s) const {
    const Simd::V limit = Simd::broadcast(7.90531110763549805f);
    // min and max keep a NaN that stands in their second operand.
    const Simd::V scaled = Simd::mul(s, Simd::broadcast(inverse));
    const Simd::V x = Simd::max(Simd::broadcast(-7.90531110763549805f), Simd::min(limit, scaled));
    const Simd::V y = Simd::mul(x, x);
    Simd::V p = Simd::fma(Simd::broadcast(-2.76076847742355e-16f), y,
                          Simd::broadcast(2.00018790482477e-13f));
    p = Simd::fma(p, y, Simd::broadcast(-8.60467152213735e-11f));
    p = Simd::fma(p, y, Simd::broadcast(5.12229709037114e-08f));
    p = Simd::fma(p, y, Simd::broadcast(1.48572235717979e-05f));
    p = Simd::fma(p, y, Simd::broadcast(6.37261928875436e-04f));
    p = Simd::fma(p, y, Simd::broadcast(4.89352455891786e-03f));
    Simd::V q = Simd::fma(Simd::broadcast(1.19825839466702e-06f), y,
                          Simd::broadcast(1.18534705686654e-04f));
    q = Simd::fma(q, y, Simd::broadcast(2.26843463243900e-03f));
    q = Simd::fma(q, y, Simd::broadcast(4.89352518554385e-03f));
    return Simd::mul(Simd::broadcast(cap), Simd::div(Simd::mul(x, p), q));
  }
};
