/** A step failed: the build fails, unless someone catches it. */
class Broken extends RuntimeException {
    Broken(String message) { super(message) }
}
