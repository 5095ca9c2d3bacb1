/** The cells of a matrix: every combination of the axes that no exclusion takes away. */
class Cells {
    static List<Map> of(Block matrix) {
        List axes = said(matrix.inner('axes'))
        List cells = axes.inject([[:]]) { List made, Map axis ->
            made.collectMany { Map cell -> axis.values.collect { value -> cell + [(axis.name): value] } }
        }
        List excludes = (matrix.inner('excludes')?.calls ?: []).collect { said(Block.read(it.args[0] as Closure)) }
        cells.findAll { Map cell -> !excludes.any { List rule -> rule.every { fits(it, cell[it.name] as String) } } }
    }

    private static boolean fits(Map axis, String value) {
        axis.values != null ? value in axis.values : !(value in axis.notValues)
    }

    private static List<Map> said(Block block) {
        block.calls.collect { Map call ->
            Block axis = Block.read(call.args[0] as Closure)
            [name: axis.one('name'), values: axis.calls.find { it.name == 'values' }?.args,
             notValues: axis.calls.find { it.name == 'notValues' }?.args]
        }
    }
}
