// Jobs with state in Scala, over the text files of a directory of `key,value` lines, one file a micro-batch.
import scala.beans.BeanProperty

import org.apache.spark.sql.{Encoder, Encoders, SparkSession}
import org.apache.spark.sql.streaming._

case class Line(key: String, value: Long)
case class Extremes(least: Long, most: Long)
case class Totals(n: Long, total: Long, range: Extremes, last: Option[String], seen: Seq[Long], often: Map[String, Int])
case class Shown(key: String, n: Long)

class Bean extends Serializable {
  @BeanProperty var total: Long = 0
  @BeanProperty var n: Long = 0
}

class Opaque(val n: Long, val total: Long) extends Serializable

object Adding {
  def apply(before: Option[Totals], values: Seq[Long]): Totals = {
    val seen = before.map(_.seen).getOrElse(Nil) ++ values
    Totals(seen.size, seen.sum, Extremes(seen.min, seen.max), values.lastOption.map(_.toString), seen,
      seen.groupBy(_.toString).map { case (value, all) => value -> all.size })
  }
}

class Processor extends StatefulProcessor[String, Line, Shown] {
  @transient private var totals: ValueState[Totals] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    totals = getHandle.getValueState[Totals]("totals", Encoders.product[Totals], TTLConfig.NONE)

  override def handleInputRows(key: String, rows: Iterator[Line], timers: TimerValues): Iterator[Shown] = {
    totals.update(Adding(Option(totals.get()), rows.map(_.value).toList))
    Iterator(Shown(key, totals.get().n))
  }
}

class Several extends StatefulProcessor[String, Line, Shown] {
  @transient private var count: ValueState[Long] = _
  @transient private var every: ListState[Long] = _
  @transient private var often: MapState[String, Extremes] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    count = getHandle.getValueState[Long]("count", Encoders.scalaLong, TTLConfig.NONE)
    every = getHandle.getListState[Long]("every", Encoders.scalaLong, TTLConfig.NONE)
    often = getHandle.getMapState[String, Extremes]("often", Encoders.STRING, Encoders.product[Extremes], TTLConfig.NONE)
  }

  override def handleInputRows(key: String, rows: Iterator[Line], timers: TimerValues): Iterator[Shown] = {
    for (Line(_, value) <- rows) {
      count.update((if (count.exists()) count.get() else 0L) + 1)
      every.appendValue(value)
      val before = if (often.containsKey(value.toString)) often.getValue(value.toString) else Extremes(value, 0)
      often.updateValue(value.toString, Extremes(value, before.most + 1))
    }
    Iterator(Shown(key, count.get()))
  }
}

object GroupedJobs {
  def main(args: Array[String]): Unit = {
    val Array(input, checkpoints, encoding, kinds @ _*) = args
    val spark = SparkSession.builder().master("local[2]")
      .config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
      .config("spark.sql.streaming.stateStore.encodingFormat", encoding)
      .config("spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
      .getOrCreate()
    for (kind <- kinds) run(spark, kind, input, s"$checkpoints/$kind")
    spark.stop()
  }

  private def run(spark: SparkSession, kind: String, input: String, checkpoint: String): Unit = {
    import spark.implicits._
    val lines = spark.readStream.option("maxFilesPerTrigger", 1).text(input).as[String].map { line =>
      val at = line.lastIndexOf(',')
      Line(line.substring(0, at), line.substring(at + 1).toLong)
    }
    val groups = lines.groupByKey(_.key)
    val timeout = GroupStateTimeout.NoTimeout
    def values(rows: Iterator[Line]): Seq[Long] = rows.map(_.value).toList
    val output = kind match {
      case "case class" => groups.mapGroupsWithState[Totals, Shown](timeout) {
        (key: String, rows: Iterator[Line], state: GroupState[Totals]) =>
          state.update(Adding(state.getOption, values(rows)))
          Shown(key, state.get.n)
      }
      case "two key columns" => lines.groupByKey(line => (line.key, line.key.length))
        .mapGroupsWithState[Totals, Shown](timeout) {
          (key: (String, Int), rows: Iterator[Line], state: GroupState[Totals]) =>
            state.update(Adding(state.getOption, values(rows)))
            Shown(key._1, state.get.n)
        }
      case "number" => groups.mapGroupsWithState[Long, Shown](timeout) {
        (key: String, rows: Iterator[Line], state: GroupState[Long]) =>
          state.update(state.getOption.getOrElse(0L) + values(rows).sum)
          Shown(key, state.get)
      }
      case "timeout" =>
        groups.flatMapGroupsWithState[Extremes, Shown](OutputMode.Update, GroupStateTimeout.ProcessingTimeTimeout) {
          (key: String, rows: Iterator[Line], state: GroupState[Extremes]) =>
            val all = values(rows)
            val before = state.getOption.getOrElse(Extremes(0, 0))
            state.update(Extremes(before.least + all.size, before.most + all.sum))
            state.setTimeoutDuration("1 hour")
            Iterator(Shown(key, state.get.least))
        }
      case "bean" =>
        implicit val beans: Encoder[Bean] = Encoders.bean(classOf[Bean])
        groups.mapGroupsWithState[Bean, Shown](timeout) {
          (key: String, rows: Iterator[Line], state: GroupState[Bean]) =>
            val bean = state.getOption.getOrElse(new Bean)
            for (value <- values(rows)) { bean.n += 1; bean.total += value }
            state.update(bean)
            Shown(key, bean.n)
        }
      case "kryo" =>
        implicit val opaque: Encoder[Opaque] = Encoders.kryo(classOf[Opaque])
        groups.mapGroupsWithState[Opaque, Shown](timeout) {
          (key: String, rows: Iterator[Line], state: GroupState[Opaque]) =>
            val (before, all) = (state.getOption.getOrElse(new Opaque(0, 0)), values(rows))
            state.update(new Opaque(before.n + all.size, before.total + all.sum))
            Shown(key, state.get.n)
        }
      case "processor" => groups.transformWithState(new Processor, TimeMode.None, OutputMode.Update)
      case "several" => groups.transformWithState(new Several, TimeMode.None, OutputMode.Update)
    }
    output.writeStream.outputMode("update").format("noop").option("checkpointLocation", checkpoint)
      .trigger(Trigger.Once()).start().awaitTermination()
  }
}
