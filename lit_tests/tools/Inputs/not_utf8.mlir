func.func @f() {
  // ÿ
}
