// Files of raw tensors, and the device.
namespace elk {

inline poplar::Device openDevice(unsigned chips, unsigned tilesPerChip) {
#ifdef ELK_ON_HARDWARE // needs <poplar/DeviceManager.hpp>
  (void)tilesPerChip;
  for (poplar::Device &d : poplar::DeviceManager::createDeviceManager().getDevices(
           poplar::TargetType::IPU, chips))
    if (d.attach())
      return std::move(d);
  throw std::runtime_error("no device is free");
#else
  poplar::IPUModel model;
  model.numIPUs = chips;
  model.tilesPerIPU = tilesPerChip;
  return model.createDevice();
#endif
}

// The small runtime has a virtual clock: how long each step of a run takes on this machine. The
// environment variable ELK_TIMES names a file that receives one line a step: kind, cycles, name.
inline void setClock(poplar::Engine &engine, double sync, double bytesIn, double bytesOut) {
#ifdef POPLAR_LITE
  static poplar::lite::VirtualClock clock;
  clock.reset(sync, bytesIn, bytesOut);
  if (std::getenv("ELK_TIMES"))
    engine.machine().clock = [](const poplar::lite::Event &event) { clock.take(event); };
#else
  (void)engine, (void)sync, (void)bytesIn, (void)bytesOut;
#endif
}

class File {
public:
  File(const char *path, const char *mode)
      : path(path), file(std::fopen(path, mode)), written(*mode == 'w') {
    if (!file)
      throw std::runtime_error(this->path + ": cannot be opened");
  }
  ~File() { std::fclose(file); }
  File(const File &) = delete;

  void read(char *to, size_t bytes) {
    if (std::fread(to, 1, bytes, file) != bytes)
      throw std::runtime_error(path + ": too short");
  }
  void write(const char *from, size_t bytes) {
    if (std::fwrite(from, 1, bytes, file) != bytes)
      throw std::runtime_error(path + ": cannot be written");
  }

  void toRemote(poplar::Engine &engine, const char *handle, size_t rowBytes, size_t rows) {
    std::vector<char> row(rowBytes);
    for (size_t i = 0; i < rows; ++i) {
      read(row.data(), rowBytes);
      engine.copyToRemoteBuffer(row.data(), handle, i);
    }
  }
  // A state: of `extent` entries along its axis the file has the first `length`.
  void toState(poplar::Engine &engine, const char *handle, size_t rowBytes, size_t layers,
               size_t outer, size_t extent, size_t length, size_t innerBytes) {
    std::vector<char> tensor(outer * extent * innerBytes);
    const size_t rows = tensor.size() / rowBytes;
    for (size_t layer = 0; layer < layers; ++layer) {
      for (size_t o = 0; o < outer; ++o)
        read(tensor.data() + o * extent * innerBytes, length * innerBytes);
      for (size_t i = 0; i < rows; ++i)
        engine.copyToRemoteBuffer(tensor.data() + i * rowBytes, handle, layer * rows + i);
    }
  }
  // Of a state the first `length` entries along its axis become the outputs.
  void fromState(poplar::Engine &engine, const char *handle, size_t rowBytes, size_t layers,
                 size_t outer, size_t extent, size_t length, size_t innerBytes) {
    std::vector<char> tensor(outer * extent * innerBytes);
    const size_t rows = tensor.size() / rowBytes;
    for (size_t layer = 0; layer < layers; ++layer) {
      for (size_t i = 0; i < rows; ++i)
        engine.copyFromRemoteBuffer(handle, tensor.data() + i * rowBytes, layer * rows + i);
      for (size_t o = 0; o < outer; ++o)
        write(tensor.data() + o * extent * innerBytes, length * innerBytes);
    }
  }
  // An input is read from the file and an output kept until it is written to the file.
  void toStream(poplar::Engine &engine, const char *handle, size_t bytes) {
    std::vector<char> &data = streams[handle];
    data.resize(bytes);
    if (!written)
      read(data.data(), bytes);
    engine.connectStream(handle, data.data(), data.data() + bytes);
  }
  void fromStream(const char *handle, size_t bytes) { write(streams[handle].data(), bytes); }

private:
  std::string path;
  std::FILE *file;
  bool written;
  std::map<std::string, std::vector<char>> streams;
};

} // namespace elk
