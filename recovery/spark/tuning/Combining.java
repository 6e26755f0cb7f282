package recovery;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Complete$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.PlanLater;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec;
import org.apache.spark.sql.execution.aggregate.HashAggregateExec;
import org.apache.spark.sql.execution.aggregate.SortAggregateExec;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Plans the combining of rows before a step's exchange: see combining.py. Spark's own compiler compiles this file.
 *
 * Only the driver has these classes: they plan Spark's own operators. Spark plans every micro-batch again, so each plan
 * can learn from the previous one.
 */
public class Combining extends SparkStrategy {
    private final SparkStrategy aggregation;
    private final Map places = new ConcurrentHashMap();

    /** Takes Spark's strategy for aggregates of frames that do not stream. */
    public Combining(SparkStrategy aggregation) {
        this.aggregation = aggregation;
    }

    /**
     * Makes the function of this name stand for an aggregate, or for a projection that gives single rows the form of
     * combined ones. Both have the function's columns. combines: whether to combine rows.
     */
    public void declare(String name, LogicalPlan aggregate, LogicalPlan single, boolean combines) {
        places.put(name, new Place((Aggregate) aggregate, (Project) single, aggregation, combines));
    }

    /** Learns how far rows were combined in a micro-batch that this plan executed. */
    public void learn(SparkPlan plan) {
        if (plan instanceof BaseAggregateExec) {
            for (Iterator each = places.values().iterator(); each.hasNext();) {
                ((Place) each.next()).learn(plan);
            }
        }
        for (int i = 0; i < plan.children().length(); i++) {
            learn((SparkPlan) plan.children().apply(i));
        }
    }

    public Seq apply(LogicalPlan plan) {
        List planned = new ArrayList();
        if (plan instanceof MapInArrow && ((MapInArrow) plan).functionExpr() instanceof PythonUDF) {
            PythonUDF function = (PythonUDF) ((MapInArrow) plan).functionExpr();
            Place place = (Place) places.get(function.name());
            if (place != null) {
                planned.add(place.plan((MapInArrow) plan, function));
            }
        }
        return Place.seq(planned);
    }
}

/** One place of a plan, across its micro-batches. */
class Place {
    /**
     * Number of micro-batches that are not combined after one that kept three quarters of its rows or more. Each place
     * pauses by itself, and the planner asks for it while it plans, so this is not the Python class of back_off.py.
     */
    private static final int PAUSE = 20;
    /** Micro-batches with fewer rows are ignored. */
    private static final long TELLING = 1000L;

    private final Aggregate aggregate;
    private final Project single;
    private final SparkStrategy aggregation;
    private final boolean combines;
    private int pause;

    Place(Aggregate aggregate, Project single, SparkStrategy aggregation, boolean combines) {
        this.aggregate = aggregate;
        this.single = single;
        this.aggregation = aggregation;
        this.combines = combines;
    }

    SparkPlan plan(MapInArrow place, PythonUDF function) {
        if (combines && worthwhile()) {
            List child = new ArrayList();
            child.add(rows(place, function, aggregate));
            Object whole = aggregation.apply((LogicalPlan) aggregate.withNewChildren(seq(child))).head();
            return new ProjectExec(renamed(aggregate.output(), place.output()), combined((BaseAggregateExec) whole));
        }
        return new ProjectExec(renamed(single.projectList(), place.output()), new PlanLater(rows(place, function, single)));
    }

    /** The rows of the function's child, with the attributes of a declared plan's child. */
    private static Project rows(MapInArrow place, PythonUDF function, LogicalPlan declared) {
        // The optimiser gives attributes other ids, for instance when it removes a useless alias.
        return new Project(renamed(function.children(), ((LogicalPlan) declared.children().head()).output()), place.child());
    }

    private boolean worthwhile() {
        if (pause == 0) {
            return true;
        }
        pause--;
        return false;
    }

    void learn(SparkPlan executed) {
        // Another aggregate of the plan may give no columns.
        if (!executed.output().isEmpty() && id(executed.output()).equals(id(aggregate.output()))) {
            SparkPlan input = (SparkPlan) executed.children().head();
            while (!(input instanceof FilterExec)) {
                input = (SparkPlan) input.children().head();
            }
            long before = rows(input);
            if (before >= TELLING && 4L * rows(executed) >= 3L * before) {
                pause = PAUSE;
            }
        }
    }

    /** Identifies an aggregate by its last column: other aggregates may share the keys' columns. */
    private static Object id(Seq output) {
        return ((Attribute) output.last()).exprId();
    }

    private static long rows(SparkPlan plan) {
        return ((Long) ((AccumulatorV2) plan.metrics().apply("numOutputRows")).value()).longValue();
    }

    /** Aggregates each partition alone, made from the two steps between which Spark would have an exchange. */
    private static SparkPlan combined(BaseAggregateExec last) {
        BaseAggregateExec first = (BaseAggregateExec) last.child();
        List functions = new ArrayList();
        for (int i = 0; i < first.aggregateExpressions().length(); i++) {
            AggregateExpression each = (AggregateExpression) first.aggregateExpressions().apply(i);
            functions.add(each.copy(each.aggregateFunction(), Complete$.MODULE$, each.isDistinct(), each.filter(), each.resultId()));
        }
        Seq complete = seq(functions);
        // A filter that drops nothing: it counts the rows that pass.
        FilterExec input = new FilterExec(Literal.TrueLiteral(), (SparkPlan) first.child());
        if (last instanceof HashAggregateExec) {
            return new HashAggregateExec(
                Option.empty(), false, Option.empty(), first.groupingExpressions(), complete, last.aggregateAttributes(),
                0, last.resultExpressions(), input);
        }
        // Spark sorts the rows before, in memory that it bounds.
        return new SortAggregateExec(
            Option.empty(), false, Option.empty(), first.groupingExpressions(), complete, last.aggregateAttributes(),
            0, last.resultExpressions(), input);
    }

    /** The expressions under the names and ids of some attributes. */
    private static Seq renamed(Seq from, Seq to) {
        List aliases = new ArrayList();
        for (int i = 0; i < from.length(); i++) {
            Attribute as = (Attribute) to.apply(i);
            Object each = from.apply(i);
            aliases.add(new Alias(
                (Expression) (each instanceof Alias ? ((Alias) each).child() : each), as.name(), as.exprId(),
                seq(new ArrayList()), Option.empty(), seq(new ArrayList())));
        }
        return seq(aliases);
    }

    static Seq seq(List list) {
        return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
    }
}
