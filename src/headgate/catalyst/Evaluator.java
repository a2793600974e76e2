package headgate;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
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
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Evaluates Catalyst expressions on Arrow batches for the processes that connect to a Unix socket. Compiled by Janino,
 * which is among Spark's jars, when it is started: therefore no lambdas, and casts in the place of inferred types.
 *
 * A connection evaluates one projection. First comes what it is (see `read`), answered by the Arrow schemas of what
 * goes in and what comes out; then batches, each answered by one. An answer is a byte, which is 0 unless it is an
 * error's, the number of bytes that follow, and those.
 */
public final class Evaluator implements Runnable {
    private static final ThreadLocal CONF = new ThreadLocal();

    private final SocketChannel channel;

    private Evaluator(SocketChannel channel) {
        this.channel = channel;
    }

    public static void main(String[] args) throws Exception {
        SQLConf$.MODULE$.setSQLConfGetter(new AbstractFunction0() {
            public Object apply() {
                Object conf = CONF.get();
                return conf == null ? new SQLConf() : conf;
            }
        });
        final File address = new File(args[0]);
        ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        server.bind(UnixDomainSocketAddress.of(address.toPath()));
        start("parent", new Runnable() {
            public void run() {
                awaitEndOfParent();
                address.delete();
                address.getParentFile().delete();
                Runtime.getRuntime().halt(0);
            }
        });
        System.out.write(0); // it listens
        System.out.flush();
        while (true) {
            start("evaluator", new Evaluator(server.accept()));
        }
    }

    /** Returns when standard input ends: the parent has it open as long as it lives. */
    private static void awaitEndOfParent() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            // The same.
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
        int partition = requests.readInt();
        boolean ownSeeds = requests.readBoolean();
        byte[] request = new byte[requests.readInt()];
        requests.readFully(request);
        Projection projection;
        try {
            projection = new Projection(request, partition, ownSeeds);
        } catch (Throwable error) {
            answerError(error);
            return;
        }
        try {
            answer(projection.schemas());
            while (true) {
                int size = requests.readInt();
                byte[] answer = null;
                Throwable failure = null;
                ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(new ReadChannel(channel), projection.allocator);
                try {
                    answer = projection.evaluate(batch);
                } catch (Throwable error) {
                    failure = error;
                }
                if (failure == null) {
                    answer(answer);
                } else {
                    answerError(failure);
                }
            }
        } finally {
            projection.close();
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
        String text = error.getClass().getName() + "\n" + condition + "\n" + String.valueOf(error.getMessage());
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

    /** Expressions, ready to be evaluated. */
    private static final class Projection {
        final BufferAllocator allocator = ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("evaluator", 0, Long.MAX_VALUE);
        private final UnsafeProjection projection;
        private final VectorSchemaRoot input;
        private final VectorLoader loader;
        private final ColumnVector[] columns;
        private final VectorSchemaRoot output;
        private final ArrowWriter writer;

        Projection(byte[] request, int partition, boolean ownSeeds) throws Exception {
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
            Seq expressions = (Seq) parts[0];
            if (ownSeeds) {
                expressions = (Seq) expressions.map(new AbstractFunction1() {
                    public Object apply(Object expression) {
                        return ((Expression) expression).transform(new WithNewSeeds());
                    }
                });
            }
            projection = UnsafeProjection.create(expressions, (Seq) parts[1]);
            projection.initialize(partition);
            StructType outputType = (StructType) parts[2];
            StructType inputType = org.apache.spark.sql.catalyst.types.DataTypeUtils$.MODULE$.fromAttributes((Seq) parts[1]);
            input = VectorSchemaRoot.create(ArrowUtils$.MODULE$.toArrowSchema(inputType, "UTC", true, false, false), allocator);
            loader = new VectorLoader(input);
            List vectors = input.getFieldVectors();
            columns = new ColumnVector[vectors.size()];
            output = VectorSchemaRoot.create(ArrowUtils$.MODULE$.toArrowSchema(outputType, "UTC", true, false, false), allocator);
            writer = ArrowWriter.create(output);
        }

        byte[] schemas() throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            WriteChannel channel = new WriteChannel(Channels.newChannel(bytes));
            MessageSerializer.serialize(channel, input.getSchema());
            MessageSerializer.serialize(channel, output.getSchema());
            return bytes.toByteArray();
        }

        byte[] evaluate(ArrowRecordBatch batch) throws IOException {
            try {
                loader.load(batch);
            } finally {
                batch.close();
            }
            writer.reset();
            List vectors = input.getFieldVectors();
            for (int i = 0; i < columns.length; i++) {
                columns[i] = new ArrowColumnVector((FieldVector) vectors.get(i));
            }
            Iterator rows = new ColumnarBatch(columns, input.getRowCount()).rowIterator();
            while (rows.hasNext()) {
                writer.write(projection.apply((InternalRow) rows.next()));
            }
            writer.finish();
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            ArrowRecordBatch made = new VectorUnloader(output).getRecordBatch();
            try {
                MessageSerializer.serialize(new WriteChannel(Channels.newChannel(bytes)), made);
            } finally {
                made.close();
            }
            return bytes.toByteArray();
        }

        void close() {
            output.close();
            input.close();
            allocator.close();
        }
    }
}
