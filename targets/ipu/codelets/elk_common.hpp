// Vertices that every program needs.

// rows = base + layer * stride: rows of a remote buffer in a loop over layers.
class LayerRows : public Vertex {
public:
  Input<Vector<unsigned>> base;
  Input<unsigned> layer;
  Output<Vector<unsigned>> rows;
  unsigned stride;
  bool compute() {
    for (unsigned i = 0; i < rows.size(); ++i)
      rows[i] = base[i] + *layer * stride;
    return true;
  }
};

// The next iteration of a loop over layers.
class NextLayer : public Vertex {
public:
  InOut<unsigned> layer;
  bool compute() {
    ++*layer;
    return true;
  }
};

#ifdef ELK_EMULATE_HBM
// Lets a modelled transfer's time pass.
class HbmController : public Vertex {
public:
  Output<unsigned> word;
  unsigned cycles;
  bool compute() {
#ifdef __IPU__
    const unsigned began = __builtin_ipu_get_scount_l();
    while (__builtin_ipu_get_scount_l() - began < cycles) {
    }
#endif
    *word = cycles;
    return true;
  }
};
#endif
