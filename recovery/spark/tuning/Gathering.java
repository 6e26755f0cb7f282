package recovery;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BitwiseOr;
import org.apache.spark.sql.catalyst.expressions.Crc32;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.MapInPandas;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.PlanLater;
import org.apache.spark.sql.execution.SortExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.types.DataTypes;
import scala.collection.immutable.Seq;

/**
 * Plans one task instead of a step's exchange, for micro-batches that are expected to be small: see gathering.py.
 *
 * Only the driver has this class: it plans Spark's own operators. Spark plans every micro-batch again.
 */
public class Gathering extends SparkStrategy {
    /** If only these are below the exchange, one task does as well as several: none of them needs rows together. */
    private static final Set NARROW = new HashSet(Arrays.asList(new Object[] {
        "Project", "Filter", "Union", "Generate", "EventTimeWatermark", "MapInArrow", "MapInPandas", "BatchEvalPython",
        "ArrowEvalPython"}));

    private final String place;
    private final Expression everywhere;
    private final Expression unhashed;
    /** For each exchange where few rows are expected, by its column: the most bytes that its sources may have to read,
     * and how many a source counts as that does not report them. */
    private final Map expected = new ConcurrentHashMap();

    /** Takes the name of the column that tells tasks whose rows they have, and its values with and without hashes. */
    public Gathering(String place, Long everywhere, Long unhashed) {
        this.place = place;
        this.everywhere = new Literal(everywhere, DataTypes.LongType);
        this.unhashed = new Literal(unhashed, DataTypes.LongType);
    }

    /** Gathers rows in place of the exchange by this column, if its sources have at most so many bytes to read. */
    public void gather(String hashColumn, long mostBytes, long unreportedBytes) {
        expected.put(hashColumn, new long[] {mostBytes, unreportedBytes});
    }

    /** Exchanges rows by this column, whatever its sources report. */
    public void exchange(String hashColumn) {
        expected.remove(hashColumn);
    }

    public Seq apply(LogicalPlan plan) {
        List planned = new ArrayList();
        if (!expected.isEmpty() && plan instanceof Project) {
            SparkPlan gathered = gathered((Project) plan);
            if (gathered != null) {
                planned.add(gathered);
            }
        }
        return seq(planned);
    }

    private SparkPlan gathered(Project project) {
        Sort sort = isOfPartitions(project.child()) ? (Sort) project.child() : null;
        Attribute hash = hash(sort == null ? project.child() : sort.child());
        if (hash == null) {
            return null;
        }
        LogicalPlan input = (LogicalPlan) (sort == null ? project.child() : sort.child()).children().head();
        long[] limits = (long[]) expected.get(hash.name());
        if (limits == null || !isNarrow(input) || bytes(input, limits[1]) > limits[0]) {
            return null;
        }
        LogicalPlan rows = withoutHash(input, hash);
        List columns = columns(project, rows == null ? new BitwiseOr(everywhere, hash) : unhashed);
        if (columns == null) {
            return null;
        }
        SparkPlan gathered = new CoalesceExec(1, new PlanLater(new Project(seq(columns), rows == null ? input : rows)));
        return sort == null ? gathered : new SortExec(seq(orderWithin(sort, hash)), false, gathered, 0);
    }

    /** The order of the sort, without the partition of the keys. */
    private static List orderWithin(Sort sort, Attribute hash) {
        List order = new ArrayList();
        for (int i = 0; i < sort.order().length(); i++) {
            Expression each = (Expression) sort.order().apply(i);
            if (!each.references().contains(hash)) {
                order.add(each);
            }
        }
        return order;
    }

    private static boolean isOfPartitions(LogicalPlan plan) {
        return plan instanceof Sort && !((Sort) plan).global();
    }

    /** The column of a step's exchange for which few rows are expected; null for other plans. */
    private Attribute hash(LogicalPlan plan) {
        if (plan instanceof RepartitionByExpression) {
            Seq by = ((RepartitionByExpression) plan).partitionExpressions();
            if (by.length() != 1) {
                return null;
            }
            Seq columns = ((Expression) by.head()).references().toSeq();
            if (columns.length() == 1 && expected.containsKey(((Attribute) columns.head()).name())) {
                return (Attribute) columns.head();
            }
        }
        return null;
    }

    /** The rows without the column of their keys' hashes, which the task computes itself; null if it must stay. */
    private static LogicalPlan withoutHash(LogicalPlan input, Attribute hash) {
        if (!(input instanceof Project)) {
            return null;
        }
        Seq list = ((Project) input).projectList();
        List others = new ArrayList();
        for (int i = 0; i < list.length(); i++) {
            NamedExpression each = (NamedExpression) list.apply(i);
            if (!each.exprId().equals(hash.exprId())) {
                others.add(each);
            } else if (!(each instanceof Alias) || !(((Alias) each).child() instanceof Crc32)) {
                return null;
            }
        }
        return new Project(seq(others), ((Project) input).child());
    }

    /** The project's columns, with this expression as the place; null if it has no place. */
    private List columns(Project project, Expression of) {
        List columns = new ArrayList();
        boolean found = false;
        for (int i = 0; i < project.projectList().length(); i++) {
            Object each = project.projectList().apply(i);
            if (each instanceof Alias && ((Alias) each).name().equals(place)) {
                Alias alias = (Alias) each;
                each = alias.copy(
                    of, alias.name(), alias.exprId(), alias.qualifier(), alias.explicitMetadata(),
                    alias.nonInheritableMetadataKeys());
                found = true;
            }
            columns.add(each);
        }
        return found ? columns : null;
    }

    private boolean isNarrow(LogicalPlan plan) {
        boolean barrier = plan instanceof MapInArrow && ((MapInArrow) plan).isBarrier()
            || plan instanceof MapInPandas && ((MapInPandas) plan).isBarrier();
        boolean narrow = plan.children().isEmpty() || NARROW.contains(plan.nodeName()) || isOfPartitions(plan);
        if (barrier || !narrow && hash(plan) == null) {
            return false;
        }
        for (int i = 0; i < plan.children().length(); i++) {
            if (!isNarrow((LogicalPlan) plan.children().apply(i))) {
                return false;
            }
        }
        return true;
    }

    /** The bytes to read that all sources together report; one that does not know counts as `unreported`. */
    private static double bytes(LogicalPlan plan, double unreported) {
        double bytes = 0;
        if (plan.children().isEmpty()) {
            bytes = plan.stats().sizeInBytes().doubleValue();
            return bytes < plan.conf().defaultSizeInBytes() ? bytes : unreported;
        }
        for (int i = 0; i < plan.children().length(); i++) {
            bytes += bytes((LogicalPlan) plan.children().apply(i), unreported);
        }
        return bytes;
    }

    private static Seq seq(List list) {
        return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
    }
}
