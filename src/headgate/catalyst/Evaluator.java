package headgate;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OutOfMemoryException;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed;
import org.apache.spark.sql.catalyst.expressions.Generator;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.HigherOrderFunction;
import org.apache.spark.sql.catalyst.expressions.InterpretedUnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.MapFromArrays;
import org.apache.spark.sql.catalyst.expressions.MutableProjection;
import org.apache.spark.sql.catalyst.expressions.SpecificInternalRow;
import org.apache.spark.sql.catalyst.expressions.StructsToXml;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.ImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.TypedImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback;
import org.apache.spark.sql.catalyst.expressions.objects.InvokeLike;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Function1;
import scala.collection.IterableOnce;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Evaluates Catalyst expressions on Arrow batches for the processes that connect to a Unix socket. Compiled by Janino,
 * which is among Spark's jars, when it is started: therefore no lambdas, and casts in the place of inferred types.
 *
 * Each connection is greeted with the id of this process, 4 bytes. One on which nothing is sent is a lifeline: when
 * there has been none for a while, this process deletes its folder and ends. A connection that evaluates is none, for
 * its end is not noticed while it does.
 *
 * Any other connection evaluates one projection, or one aggregate function. First comes what it is (see `served`),
 * answered by the Arrow schemas of what goes in and what comes out; then batches, each after a number and answered by
 * one. An answer is a byte, which is 0 unless it is an error's, the number of bytes that follow, and those. Whether its
 * client is gone is looked at between two rows, ten times a second: what takes an hour would be for nobody.
 */
public final class Evaluator implements Runnable {
    private static final ThreadLocal CONF = new ThreadLocal();
    private static final long GRACE_MS = 10000;
    private static final long GRACE_AFTER_ONE_MS = Long.getLong("headgate.grace.ms", 60000).longValue();
    private static final Object LOCK = new Object(); // lifelines, until, ends
    private static int lifelines = 0;
    private static long until = after(GRACE_MS); // without a lifeline
    private static boolean ends = false;
    private static int pid;
    private static volatile int ticks = 0; // ten a second: what a loop over rows looks at instead of a clock

    private final SocketChannel channel;

    private Evaluator(SocketChannel channel) {
        this.channel = channel;
    }

    public static void main(String[] args) throws Exception {
        // Janino has no calls of static methods of interfaces.
        pid = (int) ((ProcessHandle) ProcessHandle.class.getMethod("current").invoke(null)).pid();
        SQLConf$.MODULE$.setSQLConfGetter(new AbstractFunction0() {
            public Object apply() {
                Object conf = CONF.get();
                return conf == null ? new SQLConf() : conf;
            }
        });
        final File folder = new File(args[0]);
        final ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        server.bind(UnixDomainSocketAddress.of(new File(folder, "socket").toPath()));
        start("acceptor", new Runnable() {
            public void run() {
                accept(server);
            }
        });
        start("ticker", new Runnable() {
            public void run() {
                try {
                    while (true) {
                        Thread.sleep(100);
                        ticks++;
                    }
                } catch (InterruptedException error) {
                    // Nobody interrupts it.
                }
            }
        });
        awaitLastUser();
        delete(folder);
        System.exit(0);
    }

    private static void accept(ServerSocketChannel server) {
        try {
            while (true) {
                SocketChannel channel = server.accept();
                synchronized (LOCK) {
                    if (ends) {
                        return; // it is not greeted: its client looks for another process
                    }
                    lifelines++;
                }
                start("evaluator", new Evaluator(channel));
            }
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(4);
        }
    }

    /** Returns when no process has had a lifeline for a while. */
    private static void awaitLastUser() throws InterruptedException {
        synchronized (LOCK) {
            while (true) {
                long left = (until - System.nanoTime()) / 1000000;
                if (lifelines > 0) {
                    LOCK.wait();
                } else if (left > 0) {
                    LOCK.wait(left);
                } else {
                    ends = true;
                    return;
                }
            }
        }
    }

    private static long after(long ms) {
        return System.nanoTime() + ms * 1000000;
    }

    /** Deletes the folder, which by then has another name: who comes meanwhile makes one of its own. */
    private static void delete(File folder) {
        File renamed = new File(folder.getPath() + ".ended-" + pid);
        if (folder.renameTo(renamed)) {
            File[] files = renamed.listFiles();
            for (int i = 0; i < files.length; i++) {
                files[i].delete();
            }
            renamed.delete();
        }
    }

    private static void start(String name, Runnable runnable) {
        Thread thread = new Thread(runnable, name);
        thread.setDaemon(true);
        thread.start();
    }

    public void run() {
        try {
            serve();
        } catch (IOException error) {
            // The client is gone.
        } catch (OutOfMemoryError error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(3); // nobody knows what else has failed
        } finally {
            try {
                channel.close();
            } catch (IOException error) {
                // It is closed.
            }
        }
    }

    private void serve() throws IOException {
        InputStream in = Channels.newInputStream(channel);
        DataInputStream requests = new DataInputStream(in);
        int partition = lifeline(requests);
        boolean ownSeeds = requests.readBoolean();
        byte[] request = new byte[requests.readInt()];
        requests.readFully(request);
        Served served;
        try {
            served = served(request, partition, ownSeeds);
            served.client = channel;
        } catch (Throwable error) {
            answerError(error);
            return;
        }
        try {
            answer(served.schemas());
            while (true) {
                int kind = requests.readInt();
                byte[] answer = null;
                Throwable failure = null;
                ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(new ReadChannel(channel), served.allocator);
                try {
                    answer = served.evaluate(kind, batch);
                } catch (ClientGoneException error) {
                    throw error;
                } catch (Throwable error) {
                    failure = error;
                }
                if (failure == null) {
                    answer(answer);
                } else {
                    answerError(failure);
                    Served failed = served;
                    served = renewed(request, partition);
                    failed.close();
                }
            }
        } finally {
            served.close();
        }
    }

    /**
     * Returns what is evaluated with from now on: an expression that has failed may keep what it had begun with, and would
     * give it to the next row (a map its keys). What is drawn by chance from now on has not been drawn before.
     */
    private Served renewed(byte[] request, int partition) throws IOException {
        try {
            Served made = served(request, partition, true);
            made.client = channel;
            return made;
        } catch (Exception error) {
            throw new IOException(error);
        }
    }

    /** Returns the first number that comes, until which the connection is a lifeline. */
    private int lifeline(DataInputStream requests) throws IOException {
        try {
            ByteBuffer greeting = ByteBuffer.allocate(4);
            greeting.putInt(pid);
            greeting.flip();
            channel.write(greeting);
            return requests.readInt();
        } finally {
            synchronized (LOCK) {
                lifelines--;
                until = after(GRACE_AFTER_ONE_MS);
                LOCK.notifyAll();
            }
        }
    }

    private void answer(byte[] bytes) throws IOException {
        send(0, bytes);
    }

    private void answerError(Throwable error) throws IOException {
        if (error instanceof OutOfMemoryError) {
            throw (OutOfMemoryError) error;
        }
        String condition = "";
        if (error instanceof org.apache.spark.SparkThrowable) {
            condition = String.valueOf(((org.apache.spark.SparkThrowable) error).getCondition());
        }
        String message = String.valueOf(error.getMessage());
        if (error instanceof OutOfMemoryException) {
            message = "Arrow's buffers in the Java process " + pid + ", which evaluates expressions of this query, have no "
                + "room beside those of others that share it. Give it more: catalyst.memory. " + message;
        }
        String text = error.getClass().getName() + "\n" + condition + "\n" + message;
        send(1, text.getBytes(StandardCharsets.UTF_8));
    }

    private void send(int kind, byte[] bytes) throws IOException {
        ByteBuffer head = ByteBuffer.allocate(5);
        head.put((byte) kind);
        head.putInt(bytes.length);
        head.flip();
        ByteBuffer[] parts = new ByteBuffer[] {head, ByteBuffer.wrap(bytes)};
        while (parts[1].hasRemaining() || head.hasRemaining()) {
            channel.write(parts);
        }
    }

    /** What Spark does to expressions of each micro-batch. */
    private static final class WithNewSeeds extends AbstractPartialFunction {
        public boolean isDefinedAt(Object expression) {
            return expression instanceof ExpressionWithRandomSeed;
        }

        public Object applyOrElse(Object expression, Function1 otherwise) {
            if (!isDefinedAt(expression)) {
                return otherwise.apply(expression);
            }
            return ((ExpressionWithRandomSeed) expression).withNewSeed(new SecureRandom().nextLong());
        }
    }

    /** What a connection is for. */
    private abstract static class Served {
        final BufferAllocator allocator = ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("evaluator", 0, Long.MAX_VALUE);
        SocketChannel client;
        private int seen = ticks;

        /** Throws an exception if the client is gone, which sends nothing while it waits for an answer. */
        final void checkClient() throws IOException {
            if (seen == ticks) {
                return;
            }
            seen = ticks;
            client.configureBlocking(false);
            try {
                if (client.read(ByteBuffer.allocate(1)) < 0) {
                    throw new ClientGoneException();
                }
            } finally {
                client.configureBlocking(true);
            }
        }

        /** Answers a batch; what the number before it means is the subclass's. */
        abstract byte[] evaluate(int kind, ArrowRecordBatch batch) throws IOException;

        /** Returns the schemas of what comes in first and of what goes out last. */
        abstract byte[] schemas() throws IOException;

        abstract void close();

        static byte[] schemas(RowsIn in, RowsOut out) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            WriteChannel channel = new WriteChannel(Channels.newChannel(bytes));
            MessageSerializer.serialize(channel, in.root.getSchema());
            MessageSerializer.serialize(channel, out.root.getSchema());
            return bytes.toByteArray();
        }
    }

    private static final class ClientGoneException extends IOException {
    }

    private static Served served(byte[] request, int partition, boolean ownSeeds) throws Exception {
        final ClassLoader loading = Evaluator.class.getClassLoader();
        ObjectInputStream objects = new ObjectInputStream(new ByteArrayInputStream(request)) {
            protected Class resolveClass(java.io.ObjectStreamClass described) throws IOException, ClassNotFoundException {
                try {
                    return Class.forName(described.getName(), false, loading);
                } catch (ClassNotFoundException error) {
                    return super.resolveClass(described);
                }
            }
        };
        Object[] parts = (Object[]) objects.readObject();
        SQLConf conf = new SQLConf();
        Map settings = (Map) parts[3];
        for (Iterator names = settings.keySet().iterator(); names.hasNext();) {
            String name = (String) names.next();
            conf.setConfString(name, (String) settings.get(name));
        }
        CONF.set(conf);
        if (parts[0] instanceof AggregateFunction) {
            return new Aggregate(parts);
        }
        return new Projection(parts, partition, ownSeeds);
    }

    /** Returns columns as Arrow's, moments of UTC. Since Spark 4.3 the method has one parameter more. */
    private static Schema arrowSchema(StructType type) {
        Object[] given = {type, "UTC", Boolean.TRUE, Boolean.FALSE, Boolean.FALSE};
        Method found = null;
        Method[] methods = ArrowUtils$.class.getMethods();
        for (int i = 0; i < methods.length; i++) {
            if (methods[i].getName().equals("toArrowSchema")
                && (found == null || methods[i].getParameterCount() > found.getParameterCount())) {
                found = methods[i];
            }
        }
        try {
            return (Schema) found.invoke(ArrowUtils$.MODULE$, Arrays.copyOf(given, found.getParameterCount()));
        } catch (InvocationTargetException error) {
            throw error.getCause() instanceof RuntimeException
                ? (RuntimeException) error.getCause() : new RuntimeException(error.getCause());
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Batches that come, as rows. */
    private static final class RowsIn {
        final VectorSchemaRoot root;
        private final StructType type;
        private final VectorLoader loader;
        private final ColumnVector[] columns;
        private UnsafeProjection copy;

        RowsIn(StructType type, BufferAllocator allocator) {
            this.type = type;
            root = VectorSchemaRoot.create(arrowSchema(type), allocator);
            loader = new VectorLoader(root);
            columns = new ColumnVector[root.getFieldVectors().size()];
        }

        Iterator of(ArrowRecordBatch batch) {
            try {
                loader.load(batch);
            } finally {
                batch.close();
            }
            List vectors = root.getFieldVectors();
            for (int i = 0; i < columns.length; i++) {
                columns[i] = new ArrowColumnVector((FieldVector) vectors.get(i));
            }
            return new ColumnarBatch(columns, root.getRowCount()).rowIterator();
        }

        /**
         * From now on each row with arrays or maps is copied into the form in which Spark's own operators pass them on.
         * Lambdas and what has no generated code, or calls a method, ask for an element, and what keeps an array copies
         * it, before they ask whether it is null: Spark's view of Arrow's vectors takes that for an error.
         */
        void copyElements() {
            if (type.existsRecursively(new HasElements())) {
                copy = UnsafeProjection.create(type.asNullable());
            }
        }

        InternalRow next(Iterator rows) {
            InternalRow row = (InternalRow) rows.next();
            return copy == null ? row : copy.apply(row);
        }
    }

    private static final class HasElements extends AbstractFunction1 {
        public Object apply(Object type) {
            return Boolean.valueOf(type instanceof ArrayType || type instanceof MapType);
        }
    }

    private static final class AsksForElements extends AbstractFunction1 {
        public Object apply(Object expression) {
            return Boolean.valueOf(expression instanceof CodegenFallback || expression instanceof HigherOrderFunction
                || expression instanceof InvokeLike || expression instanceof MapFromArrays
                || expression instanceof StructsToXml);
        }
    }

    /** Rows that go, as batches. */
    private static final class RowsOut {
        final VectorSchemaRoot root;
        private final ArrowWriter writer;

        RowsOut(StructType type, BufferAllocator allocator) {
            root = VectorSchemaRoot.create(arrowSchema(type), allocator);
            writer = ArrowWriter.create(root);
        }

        void write(InternalRow row) {
            writer.write(row);
        }

        void writeValue(Object value) {
            writer.write(new GenericInternalRow(new Object[] {value}));
        }

        byte[] made() throws IOException {
            writer.finish();
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            ArrowRecordBatch made = new VectorUnloader(root).getRecordBatch();
            try {
                MessageSerializer.serialize(new WriteChannel(Channels.newChannel(bytes)), made);
            } finally {
                made.close();
            }
            return bytes.toByteArray();
        }
    }

    /** Expressions, ready to be evaluated; or one generator, whose rows become an array. */
    private static final class Projection extends Served {
        private final UnsafeProjection projection;
        private Expression generator;
        private final RowsIn input;
        private final RowsOut output;

        Projection(Object[] parts, int partition, boolean ownSeeds) {
            Seq expressions = (Seq) parts[0];
            if (ownSeeds) {
                expressions = (Seq) expressions.map(new AbstractFunction1() {
                    public Object apply(Object expression) {
                        return ((Expression) expression).transform(new WithNewSeeds());
                    }
                });
            }
            Expression first = (Expression) expressions.head();
            if (first instanceof Alias && ((Alias) first).child() instanceof Generator) {
                expressions = prepared(((Alias) first).child()); // which has nothing beside it
            }
            projection = UnsafeProjection.create(expressions, (Seq) parts[1]);
            projection.initialize(partition);
            input = new RowsIn(DataTypeUtils$.MODULE$.fromAttributes((Seq) parts[1]), allocator);
            output = new RowsOut((StructType) parts[2], allocator);
            boolean asks = projection instanceof InterpretedUnsafeProjection; // too large to be compiled
            for (scala.collection.Iterator each = expressions.iterator(); each.hasNext() && !asks;) {
                asks = ((Expression) each.next()).exists(new AsksForElements());
            }
            if (asks) {
                input.copyElements();
            }
        }

        /** Keeps the generator of what its children give, and returns these. */
        private Seq prepared(Expression given) {
            List references = new ArrayList();
            for (scala.collection.Iterator each = given.children().iterator(); each.hasNext();) {
                Expression child = (Expression) each.next();
                Object reference = new BoundReference(references.size(), child.dataType(), child.nullable());
                references.add(child.foldable() ? child : reference);
            }
            generator = (Expression) given.withNewChildren(CollectionConverters.asScala(references).toList());
            return given.children();
        }

        byte[] schemas() throws IOException {
            return schemas(input, output);
        }

        byte[] evaluate(int kind, ArrowRecordBatch batch) throws IOException {
            output.writer.reset();
            for (Iterator rows = input.of(batch); rows.hasNext();) {
                checkClient();
                InternalRow row = projection.apply(input.next(rows));
                if (generator == null) {
                    output.write(row);
                } else {
                    output.writeValue(generated(row));
                }
            }
            return output.made();
        }

        private GenericArrayData generated(InternalRow row) throws IOException {
            List made = new ArrayList();
            IterableOnce rows = (IterableOnce) generator.eval(row);
            for (scala.collection.Iterator each = rows.iterator(); each.hasNext();) {
                checkClient();
                made.add(((InternalRow) each.next()).copy());
            }
            return new GenericArrayData(made.toArray());
        }

        void close() {
            output.root.close();
            input.root.close();
            allocator.close();
        }
    }

    /**
     * An aggregate function, with its buffers as bytes: one for each row (1), one for the rows of each group (2), a
     * result for each (3). The last column of what it is computed of says which rows count.
     */
    private static final class Aggregate extends Served {
        private final AggregateFunction function;
        private final int condition;
        private final InternalRow buffer;
        private final UnsafeProjection stored;
        private final UnsafeRow merged;
        private final RowsIn input;
        private final RowsIn buffers;
        private final RowsOut lifted;
        private final RowsOut output;
        private MutableProjection initialize;
        private MutableProjection update;
        private MutableProjection merge;
        private UnsafeProjection evaluate;
        private final JoinedRow both = new JoinedRow();

        Aggregate(Object[] parts) {
            function = (AggregateFunction) parts[0];
            Seq inputs = (Seq) parts[1];
            condition = inputs.size() - 1;
            buffer = new SpecificInternalRow(function.aggBufferSchema());
            merged = new UnsafeRow(function.aggBufferSchema().size());
            stored = UnsafeProjection.create(function.aggBufferSchema());
            input = new RowsIn(DataTypeUtils$.MODULE$.fromAttributes(inputs), allocator);
            input.copyElements();
            buffers = new RowsIn(new StructType().add("buffer", "binary").add("group", "int"), allocator);
            lifted = new RowsOut(new StructType().add("buffer", "binary"), allocator);
            output = new RowsOut((StructType) parts[2], allocator);
            if (function instanceof DeclarativeAggregate) {
                DeclarativeAggregate declared = (DeclarativeAggregate) function;
                Seq own = declared.aggBufferAttributes();
                initialize = MutableProjection.create(declared.initialValues(), sequence(new Seq[0]));
                update = MutableProjection.create(declared.updateExpressions(), sequence(new Seq[] {own, inputs}));
                merge = MutableProjection.create(
                    declared.mergeExpressions(), sequence(new Seq[] {own, declared.inputAggBufferAttributes()}));
                evaluate = UnsafeProjection.create(one(declared.evaluateExpression()), own);
                initialize.target(buffer);
                update.target(buffer);
                merge.target(buffer);
            }
        }

        private static Seq one(Object element) {
            List elements = new ArrayList();
            elements.add(element);
            return CollectionConverters.asScala(elements).toList();
        }

        private static Seq sequence(Seq[] parts) {
            List elements = new ArrayList();
            for (int i = 0; i < parts.length; i++) {
                for (scala.collection.Iterator each = parts[i].iterator(); each.hasNext();) {
                    elements.add(each.next());
                }
            }
            return CollectionConverters.asScala(elements).toList();
        }

        byte[] schemas() throws IOException {
            return schemas(input, output);
        }

        byte[] evaluate(int kind, ArrowRecordBatch batch) throws IOException {
            RowsOut made = kind == 3 ? output : lifted;
            made.writer.reset();
            if (kind == 1) {
                lift(input.of(batch));
            } else if (kind == 2) {
                merge(buffers.of(batch));
            } else {
                finish(buffers.of(batch));
            }
            return made.made();
        }

        private void lift(Iterator rows) throws IOException {
            while (rows.hasNext()) {
                checkClient();
                InternalRow row = input.next(rows);
                begin();
                if (!row.isNullAt(condition) && row.getBoolean(condition)) {
                    if (update != null) {
                        update.apply(both.apply(buffer, row));
                    } else {
                        ((ImperativeAggregate) function).update(buffer, row);
                    }
                }
                store();
            }
        }

        private void merge(Iterator rows) throws IOException {
            int group = -1;
            while (rows.hasNext()) {
                checkClient();
                InternalRow row = (InternalRow) rows.next();
                if (row.getInt(1) != group) {
                    if (group >= 0) {
                        store();
                    }
                    begin();
                    group = row.getInt(1);
                }
                add(row);
            }
            if (group >= 0) {
                store();
            }
        }

        private void finish(Iterator rows) throws IOException {
            while (rows.hasNext()) {
                checkClient();
                InternalRow row = (InternalRow) rows.next();
                if (evaluate != null) {
                    pointTo(row);
                    output.write(evaluate.apply(merged));
                } else {
                    begin();
                    add(row);
                    output.writeValue(((ImperativeAggregate) function).eval(buffer));
                }
            }
        }

        private void begin() {
            if (initialize != null) {
                initialize.apply(InternalRow.empty());
            } else {
                ((ImperativeAggregate) function).initialize(buffer);
            }
        }

        private void add(InternalRow row) {
            pointTo(row);
            if (merge != null) {
                merge.apply(both.apply(buffer, merged));
            } else {
                ((ImperativeAggregate) function).merge(buffer, merged);
            }
        }

        private void pointTo(InternalRow row) {
            byte[] bytes = row.getBinary(0);
            merged.pointTo(bytes, bytes.length);
        }

        private void store() {
            if (function instanceof TypedImperativeAggregate) {
                ((TypedImperativeAggregate) function).serializeAggregateBufferInPlace(buffer);
            }
            lifted.writeValue(stored.apply(buffer).getBytes());
        }

        void close() {
            input.root.close();
            buffers.root.close();
            lifted.root.close();
            output.root.close();
            allocator.close();
        }
    }
}
