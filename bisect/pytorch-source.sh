# One build of torch into $PREFIX; runs in the worktree, stops at the first error (sh -eu).
# build/ stays for the next commit; what is gathered in build/lib* is not wiped by setuptools itself.
rm -rf build/lib* build/bdist* dist "$PREFIX.wheels"
if [ "${USE_CUDA:-0}" != 0 ] && [ -f .ci/docker/ci_commit_pins/triton.txt ]; then
  commit=$(cat .ci/docker/ci_commit_pins/triton.txt)
  "$PYTHON" -m pip install --no-input --no-deps --target "$PREFIX" \
    "triton @ git+https://github.com/triton-lang/triton@$commit"
fi
"$PYTHON" -m pip wheel . --no-input --no-deps --no-build-isolation -v -w "$PREFIX.wheels"
"$PYTHON" -m pip install --no-input --no-deps --no-index --target "$PREFIX" --upgrade "$PREFIX.wheels"/torch-*.whl
rm -rf "$PREFIX.wheels"
