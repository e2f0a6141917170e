// Which box of a tensor every core holds, from the layout expressions, and what moves where when a
// tensor changes its layout. Nothing here knows of Poplar.
namespace elk {

using Longs = std::vector<long>;

inline long floorDiv(long a, long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
inline long floorMod(long a, long b) { return a - floorDiv(a, b) * b; }

// Narrows [lo, hi) to [lo + start, min(lo + start + size, hi)) for core c and slot s.
struct Cut {
  long (*start)(long c, long s);
  long size;
};

// Core c has block c / D % M, of W elements: D neighbours share one of M blocks, over and over.
template <long D, long M, long W = 1>
constexpr Cut blocks = {[](long c, long) -> long { return c / D % M * W; }, W};

// Nested cuts of an axis, outermost first; `slots` blocks of it are kept.
struct Axis {
  long extent;
  Cut cuts[3] = {};
  long slots = 1;

  long block() const {
    long size = extent;
    for (const Cut &cut : cuts)
      size = cut.start ? cut.size : size;
    return size;
  }
};

// One block of a core: element [lo, hi) of the tensor, the block's own first element being
// `origin`. It begins at element `first` of what the core holds.
struct Block {
  unsigned core = 0;
  long first = 0;
  Longs origin, lo, hi, shape;
  bool away = false; // the guard says that the core has nothing
  bool empty() const {
    if (away)
      return true;
    for (size_t j = 0; j < lo.size(); ++j)
      if (hi[j] <= lo[j])
        return true;
    return false;
  }
};

inline long product(const Longs &v) {
  long n = 1;
  for (long x : v)
    n *= x;
  return n;
}

using Slots = std::initializer_list<long>;

struct Layout {
  unsigned cores;
  size_t rank;
  Axis axes[MAX_RANK];
  long (*guard)(long c, long s) = nullptr; // only cores for which it is zero hold their box

  Longs shape() const {
    Longs v;
    for (size_t j = 0; j < rank; ++j)
      v.push_back(axes[j].extent);
    return v;
  }
  Longs blockShape() const {
    Longs v;
    for (size_t j = 0; j < rank; ++j)
      v.push_back(axes[j].block());
    return v;
  }
  Longs slots() const {
    Longs v;
    for (size_t j = 0; j < rank; ++j)
      v.push_back(axes[j].slots);
    return v;
  }
  // Elements that a core holds: slots, then the block, row-major.
  long elements() const { return product(slots()) * product(blockShape()); }

  Block block(unsigned c) const {
    const long first[MAX_RANK] = {};
    return block(c, first);
  }
  Block block(unsigned c, Slots slot) const { return block(c, slot.begin()); }

  Block block(unsigned c, const long *slot) const {
    Block b;
    b.core = c;
    b.shape = blockShape();
    for (size_t j = 0; j < rank; ++j) {
      const Axis &axis = axes[j];
      long lo = 0, hi = axis.extent;
      for (const Cut &cut : axis.cuts) {
        if (!cut.start)
          break;
        lo += cut.start(c, slot[j]);
        hi = std::min(lo + cut.size, hi);
      }
      b.first = b.first * axis.slots + slot[j];
      b.origin.push_back(lo);
      b.lo.push_back(std::max(lo, 0L));
      b.hi.push_back(hi);
    }
    b.first *= product(b.shape);
    b.away = guard && guard(c, 0) != 0;
    return b;
  }

  // Every block that holds something, by core, then slot. `high`: only what lies below it.
  std::vector<Block> blocks(const Longs &high = {}) const {
    std::vector<Block> found;
    for (unsigned c = 0; c < cores; ++c) {
      Longs slot(rank, 0);
      for (bool more = true; more;) {
        Block b = block(c, slot.data());
        for (size_t j = 0; j < high.size(); ++j)
          b.hi[j] = std::min(b.hi[j], high[j]);
        if (!b.empty())
          found.push_back(b);
        more = false;
        for (size_t j = rank; j-- > 0 && !more;) {
          more = ++slot[j] < axes[j].slots;
          if (!more)
            slot[j] = 0;
        }
      }
    }
    return found;
  }
};

// A box of a block: its core, the block's first element, where in the block it starts, its shape.
struct Part {
  unsigned core;
  long first;
  Longs start, shape;
};

inline Part part(const Block &b, const Longs &lo, const Longs &hi) {
  Part p{b.core, b.first, {}, {}};
  for (size_t j = 0; j < lo.size(); ++j) {
    p.start.push_back(lo[j] - b.origin[j]);
    p.shape.push_back(hi[j] - lo[j]);
  }
  return p;
}

struct Move {
  Part from, to;
};

// The distinct boxes of some blocks, with the blocks that hold each.
struct Boxes {
  std::vector<Block> blocks;
  std::map<std::pair<Longs, Longs>, std::vector<size_t>> holders;

  explicit Boxes(std::vector<Block> all) : blocks(std::move(all)) {
    for (size_t i = 0; i < blocks.size(); ++i)
      holders[{blocks[i].lo, blocks[i].hi}].push_back(i);
  }

  // The cells into which the boxes cut [lo, hi), with a box that covers each.
  struct Cell {
    Longs lo, hi;
    const std::vector<size_t> *holders;
  };
  std::vector<Cell> cells(const Longs &lo, const Longs &hi) const {
    const size_t rank = lo.size();
    const auto same = holders.find({lo, hi});
    if (same != holders.end())
      return {{lo, hi, &same->second}};
    std::vector<Longs> cuts(rank);
    std::vector<std::pair<const std::pair<Longs, Longs> *, const std::vector<size_t> *>> near;
    for (const auto &entry : holders) {
      bool meets = true;
      for (size_t j = 0; j < rank; ++j)
        meets = meets && entry.first.first[j] < hi[j] && entry.first.second[j] > lo[j];
      if (!meets)
        continue;
      near.push_back({&entry.first, &entry.second});
      for (size_t j = 0; j < rank; ++j) {
        cuts[j].push_back(std::max(lo[j], entry.first.first[j]));
        cuts[j].push_back(std::min(hi[j], entry.first.second[j]));
      }
    }
    std::vector<Cell> found;
    for (Longs &c : cuts) {
      std::sort(c.begin(), c.end());
      c.erase(std::unique(c.begin(), c.end()), c.end());
      if (c.size() < 2)
        return found;
    }
    std::vector<size_t> at(rank, 0);
    for (bool more = !near.empty(); more;) {
      Cell cell{{}, {}, nullptr};
      for (size_t j = 0; j < rank; ++j) {
        cell.lo.push_back(cuts[j][at[j]]);
        cell.hi.push_back(cuts[j][at[j] + 1]);
      }
      for (const auto &box : near) {
        bool covers = true;
        for (size_t j = 0; j < rank; ++j)
          covers = covers && box.first->first[j] <= cell.lo[j] && box.first->second[j] >= cell.hi[j];
        if (covers) {
          cell.holders = box.second;
          break;
        }
      }
      if (cell.holders)
        found.push_back(cell);
      more = false;
      for (size_t j = rank; j-- > 0 && !more;) {
        more = ++at[j] + 1 < cuts[j].size();
        if (!more)
          at[j] = 0;
      }
    }
    return found;
  }
};

// What gives every core its blocks of `target`. Along `axis` the source is the part of the target
// that begins at `start`. A core takes what it holds itself; otherwise requesters are spread over
// the holders in order, so that neighbours read from neighbours.
inline std::vector<Move> moves(const Layout &source, const Layout &target, int axis = -1,
                               long start = 0) {
  std::vector<Block> held = source.blocks();
  if (axis >= 0)
    for (Block &b : held) {
      b.origin[axis] += start;
      b.lo[axis] += start;
      b.hi[axis] += start;
    }
  const Boxes boxes(held);
  struct Request {
    Block to;
    Boxes::Cell cell;
    size_t rank;
  };
  std::vector<Request> requests;
  std::map<const void *, size_t> asked;
  std::map<std::pair<Longs, Longs>, std::vector<Boxes::Cell>> known;
  for (const Block &b : target.blocks()) {
    auto it = known.find({b.lo, b.hi});
    if (it == known.end())
      it = known.emplace(std::make_pair(b.lo, b.hi), boxes.cells(b.lo, b.hi)).first;
    for (const Boxes::Cell &cell : it->second)
      requests.push_back({b, cell, asked[cell.holders]++});
  }
  std::vector<Move> result;
  for (const Request &r : requests) {
    const std::vector<size_t> &holders = *r.cell.holders;
    const Block *from = &boxes.blocks[holders[r.rank * holders.size() / asked[&holders]]];
    for (size_t i : holders)
      if (boxes.blocks[i].core == r.to.core)
        from = &boxes.blocks[i];
    result.push_back({part(*from, r.cell.lo, r.cell.hi), part(r.to, r.cell.lo, r.cell.hi)});
  }
  return result;
}

// The grid of cells of a whole tensor below `high`, each with the one block that stands for it (or
// none, if no core holds it), and what brings it to the other blocks that hold it.
struct Owners {
  std::vector<Longs> cuts;
  std::vector<Part> cells; // row-major over the cuts; `first` is -1 without a holder
  long unheld = 0;         // elements that no core holds
  std::vector<Move> copies;

  Owners(const Layout &layout, const Longs &high) : cuts(high.size()) {
    const Boxes boxes(layout.blocks(high));
    for (const auto &box : boxes.holders)
      for (size_t j = 0; j < high.size(); ++j) {
        cuts[j].push_back(box.first.first[j]);
        cuts[j].push_back(box.first.second[j]);
      }
    for (size_t j = 0; j < high.size(); ++j) {
      cuts[j].push_back(0);
      cuts[j].push_back(high[j]);
      std::sort(cuts[j].begin(), cuts[j].end());
      cuts[j].erase(std::unique(cuts[j].begin(), cuts[j].end()), cuts[j].end());
    }
    size_t count = 1;
    for (const Longs &c : cuts)
      count *= c.size() - 1;
    for (size_t n = 0; n < count; ++n) {
      Longs shape(cuts.size());
      size_t rest = n;
      for (size_t j = cuts.size(); j-- > 0;) {
        const size_t at = rest % (cuts[j].size() - 1);
        rest /= cuts[j].size() - 1;
        shape[j] = cuts[j][at + 1] - cuts[j][at];
      }
      cells.push_back({0, -1, {}, shape});
    }
    std::vector<size_t> owner(count, boxes.blocks.size());
    for (size_t i = 0; i < boxes.blocks.size(); ++i) {
      const Block &b = boxes.blocks[i];
      for (size_t n = 0; n < count; ++n) {
        Longs lo(cuts.size()), hi(cuts.size());
        bool inside = true;
        size_t rest = n;
        for (size_t j = cuts.size(); j-- > 0;) {
          const size_t at = rest % (cuts[j].size() - 1);
          rest /= cuts[j].size() - 1;
          lo[j] = cuts[j][at];
          hi[j] = cuts[j][at + 1];
          inside = inside && b.lo[j] <= lo[j] && hi[j] <= b.hi[j];
        }
        if (!inside)
          continue;
        if (owner[n] == boxes.blocks.size()) {
          owner[n] = i;
          cells[n] = part(b, lo, hi);
        } else {
          copies.push_back({cells[n], part(b, lo, hi)});
        }
      }
    }
    for (const Part &cell : cells)
      unheld += cell.first < 0 ? product(cell.shape) : 0;
  }
};

} // namespace elk
