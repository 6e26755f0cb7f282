package recovery;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.LogicalRDD$;
import org.apache.spark.sql.internal.ReadOnlySQLConf;
import org.apache.spark.sql.internal.SQLConf;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction0;

/** Lends frames of micro-batches to sinks, and notes how often each partition is read: see lending.py. */
public class Lending {
    /** By number: tasks, which run in this JVM too, find the loan of their rows here until it ends. */
    private static final Map LOANS = new ConcurrentHashMap();
    private static final AtomicLong NUMBERS = new AtomicLong();
    private static final int NONE = -1;

    private final List properties = new ArrayList();

    /** Gives a local property of the thread that lends to all tasks that read: a sink may read in other threads. */
    public void passOn(String property) {
        properties.add(property);
    }

    /** Lends a frame. What is below it runs with this setting, unless the session has it; what a sink adds does not. */
    public Loan lend(Dataset frame, String setting, String value) throws Exception {
        LogicalPlan plan = frame.queryExecution().analyzed();
        RDD rows = plan instanceof LogicalRDD ? ((LogicalRDD) plan).rdd() : frame.queryExecution().toRdd();
        Map passed = new HashMap();
        for (int i = 0; i < properties.size(); i++) {
            String each = (String) properties.get(i);
            passed.put(each, frame.sparkSession().sparkContext().getLocalProperty(each));
        }
        Loan loan = new Loan(NUMBERS.incrementAndGet(), rows.getNumPartitions(), passed);
        LogicalPlan lent = planOf(new LentRows(rows, loan.number, setting, value), frame);
        loan.frame = Dataset.ofRows((SparkSession) frame.sparkSession(), lent);
        LOANS.put(Long.valueOf(loan.number), loan);
        return loan;
    }

    static Loan loan(long number) {
        Loan loan = (Loan) LOANS.get(Long.valueOf(number));
        if (loan == null) {
            throw new IllegalStateException("The frame of a micro-batch was read after its sink had returned");
        }
        return loan;
    }

    /** Since Spark 4.3 the method has another parameter, which is false by default, too. */
    private static LogicalPlan planOf(RDD rows, Dataset origin) throws Exception {
        Method[] methods = LogicalRDD$.class.getMethods();
        for (int i = 0; i < methods.length; i++) {
            if (methods[i].getName().equals("fromDataset")) {
                Object[] given = new Object[methods[i].getParameterTypes().length];
                Arrays.fill(given, Boolean.FALSE);
                given[0] = rows;
                given[1] = origin;
                return (LogicalPlan) methods[i].invoke(LogicalRDD$.MODULE$, given);
            }
        }
        throw new NoSuchMethodException("LogicalRDD.fromDataset");
    }

    /** A frame that is lent, and how often each of its partitions was begun and read to its end. */
    public static class Loan {
        private final long number;
        private final AtomicIntegerArray begun;
        private final AtomicIntegerArray finished;
        private final Map properties;
        private final AtomicInteger stage = new AtomicInteger(NONE);
        private volatile boolean again;
        private Dataset frame;

        Loan(long number, int partitions, Map properties) {
            this.number = number;
            this.properties = properties;
            begun = new AtomicIntegerArray(partitions);
            finished = new AtomicIntegerArray(partitions);
        }

        public Dataset frame() {
            return frame;
        }

        void begin(int partition, TaskContext context) {
            int id = context.stageId();
            if (begun.incrementAndGet(partition) > 1 || !stage.compareAndSet(NONE, id) && stage.get() != id) {
                again = true;
            }
            for (java.util.Iterator each = properties.entrySet().iterator(); each.hasNext();) {
                Map.Entry property = (Map.Entry) each.next();
                if (property.getValue() != null) {
                    context.getLocalProperties().put(property.getKey(), property.getValue());
                }
            }
        }

        void finish(int partition) {
            finished.incrementAndGet(partition);
        }

        /**
         * Ends the loan: the frame cannot be read any more. Returns how it was read: each partition to its end, ONCE by
         * one stage, or AGAIN or by more stages; or PARTLY.
         */
        public String end() {
            LOANS.remove(Long.valueOf(number));
            for (int i = 0; i < finished.length(); i++) {
                if (finished.get(i) == 0) {
                    return "PARTLY";
                }
            }
            return again ? "AGAIN" : "ONCE";
        }
    }
}

/** The rows of a loan. */
class LentRows extends RDD {
    private static final ClassTag ROW = ClassTag$.MODULE$.apply(InternalRow.class);

    private final long number;
    private final String setting;
    private final String value;

    LentRows(RDD rows, long number, String setting, String value) {
        super(rows, ROW);
        this.number = number;
        this.setting = setting;
        this.value = value;
    }

    public Partition[] getPartitions() {
        return firstParent(ROW).partitions();
    }

    public Iterator compute(final Partition partition, final TaskContext context) {
        Lending.Loan loan = Lending.loan(number);
        loan.begin(partition.index(), context);
        if (setting == null || context.getLocalProperty(setting) != null) {
            return new NotedRows(rows(partition, context), loan, partition.index());
        }
        SQLConf conf = new SQLConf();
        Iterator settings = new ReadOnlySQLConf(context).getAllConfs().iterator();
        while (settings.hasNext()) {
            Tuple2 each = (Tuple2) settings.next();
            conf.setConfString((String) each._1(), (String) each._2());
        }
        conf.setConfString(setting, value);
        Object rows = SQLConf.withExistingConf(conf, new AbstractFunction0() {
            public Object apply() {
                return rows(partition, context);
            }
        });
        return new NotedRows((Iterator) rows, loan, partition.index());
    }

    Iterator rows(Partition partition, TaskContext context) {
        return firstParent(ROW).iterator(partition, context);
    }
}

/** The rows of one partition of a loan. */
class NotedRows extends AbstractIterator {
    private final Iterator rows;
    private final Lending.Loan loan;
    private final int partition;
    private boolean ended;

    NotedRows(Iterator rows, Lending.Loan loan, int partition) {
        this.rows = rows;
        this.loan = loan;
        this.partition = partition;
    }

    public boolean hasNext() {
        boolean more = rows.hasNext();
        if (!more && !ended) {
            ended = true;
            loan.finish(partition);
        }
        return more;
    }

    public Object next() {
        return rows.next();
    }
}
