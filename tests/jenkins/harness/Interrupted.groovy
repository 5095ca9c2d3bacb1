/** A time limit or a person ended a step: the result is ABORTED, also where catchError says otherwise. */
class Interrupted extends RuntimeException {
    Interrupted(String message) { super(message) }
}
