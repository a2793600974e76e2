package headgate;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Enumeration;
import scala.Option;
import scala.Product;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Writes trees of Spark's, which are plans and expressions, as JSON that plan_copy.py reads: all that the translation
 * asks of most nodes, in one call. Compiled by Janino, which is among Spark's jars, in the driver's Java process:
 * therefore no lambdas, and casts in the place of inferred types.
 *
 * Nodes, types and classes are numbered in the order in which they are first met. An answer has what is new since the
 * last one, each list in the order of these numbers:
 *
 *     {"value": VALUE, "classes": [[NAME, SIMPLE NAME, [SIMPLE NAMES OF ALL ABOVE IT], [NAMES OF FIELDS]], ...],
 *      "types": [[JSON OF THE TYPE, CATALOG STRING], ...], "nodes": [NODE, ...]}
 *
 *     NODE of a plan            [CLASS, [CHILD, ...] or null, [VALUE OF A FIELD, ...]]
 *     NODE of an expression     the same, then FLAGS, TYPE, KEY: two expressions have one key exactly if they are
 *                               semantically equal, or the same where they are not deterministic; then the VALUE of the
 *                               cast of a literal, in a list, else null
 *     ... that has a name       the same, then ID, NAME, METADATA or null
 *
 * A value is null, a boolean, a whole number, a text that begins with a letter for what it is, or a list that begins with
 * a word for that: see `write`.
 */
public final class PlanCopy {
    private static final int FOLDABLE = 1;
    private static final int DETERMINISTIC = 2;
    private static final int NULLABLE = 4;
    private static final int CURRENT_LIKE = 8;
    private static final int PYTHON_UDF = 16;
    /** What py4j sends in one packet: for a second one it would wait until the first is acknowledged, 40 ms later. */
    private static final int PIECE = 7000;
    private static final String EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions";

    private final List nodes = new ArrayList();
    private final IdentityHashMap numbers = new IdentityHashMap();
    private final List types = new ArrayList();
    private final HashMap typeNumbers = new HashMap();
    private final HashMap classNumbers = new HashMap();
    private final HashMap keys = new HashMap();

    private String left = "";
    private StringBuilder newNodes;
    private StringBuilder newTypes;
    private StringBuilder newClasses;

    /** Returns another one, which has nothing yet. */
    public PlanCopy fresh() {
        return new PlanCopy();
    }

    /** Returns the answer for a tree. */
    public String add(Object tree) {
        return answer(tree);
    }

    /** Returns the answer for what a method of a node without parameters returns. */
    public String ask(int node, String method) throws Throwable {
        Object of = nodes.get(node);
        try {
            return answer(of.getClass().getMethod(method, new Class[0]).invoke(of, new Object[0]));
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    public Object node(int number) {
        return nodes.get(number);
    }

    public Object type(int number) {
        return types.get(number);
    }

    /** Returns a Scala list of nodes, whose numbers are separated by commas. */
    public Object nodes(String numbers) {
        List found = new ArrayList();
        String[] each = numbers.split(",");
        for (int place = 0; place < each.length; place++) {
            found.add(nodes.get(Integer.parseInt(each[place])));
        }
        return list(found);
    }

    /** Begins to return what Evaluator.java reads: expressions, their attributes, the type of the output, SQL settings. */
    public String stored(Object of, Object inputs, Object output, Object settings) throws IOException {
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        ObjectOutputStream stream = new ObjectOutputStream(made);
        stream.writeObject(new Object[] {of, inputs, output, settings});
        stream.close();
        left = Base64.getEncoder().encodeToString(made.toByteArray());
        return next();
    }

    /** Returns the same of an aggregate function of attributes, which stand for its arguments that are no constants. */
    public String storedAggregate(int number, Object settings) throws IOException {
        Expression function = (Expression) nodes.get(number);
        // The code of a declarative one evaluates its children, those of others are bound.
        boolean bound = !(function instanceof DeclarativeAggregate);
        List attributes = new ArrayList();
        List children = new ArrayList();
        Iterator given = function.children().iterator();
        while (given.hasNext()) {
            Expression each = (Expression) given.next();
            if (each.foldable()) {
                children.add(each);
            } else {
                Object attribute = attribute(each);
                children.add(bound ? new BoundReference(attributes.size(), each.dataType(), true) : attribute);
                attributes.add(attribute);
            }
        }
        attributes.add(attribute(Literal$.MODULE$.TrueLiteral()));
        Object of = function.withNewChildren((Seq) list(children));
        return stored(of, list(attributes), new StructType().add("result", function.dataType(), true), settings);
    }

    private static Object attribute(Expression of) {
        return new AttributeReference(of.getClass().getSimpleName(), of.dataType(), true, Metadata.empty(),
            NamedExpression$.MODULE$.newExprId(), (Seq) list(new ArrayList()));
    }

    private static Object list(List items) {
        return CollectionConverters.asScala(items).toList();
    }

    private String answer(Object value) {
        newNodes = new StringBuilder();
        newTypes = new StringBuilder();
        newClasses = new StringBuilder();
        StringBuilder written = new StringBuilder();
        write(value, written);
        left = "{\"value\":" + written + ",\"classes\":[" + newClasses + "],\"types\":[" + newTypes + "],\"nodes\":["
            + newNodes + "]}";
        return next();
    }

    /** Returns the next piece of an answer: after a letter that says whether it is the last one. */
    public String next() {
        int end = Math.min(left.length(), PIECE);
        if (end < left.length() && Character.isHighSurrogate(left.charAt(end - 1))) {
            end--;
        }
        String piece = (end < left.length() ? "m" : "e") + left.substring(0, end); // more, or the end
        left = left.substring(end);
        return piece;
    }

    private int numberOf(TreeNode node) {
        Integer known = (Integer) numbers.get(node);
        if (known != null) {
            return known.intValue();
        }
        StringBuilder out = new StringBuilder();
        out.append('[').append(classNumber(node)).append(',');
        Iterator children = node.children().iterator();
        if (children.hasNext()) {
            char before = '[';
            for (; children.hasNext(); before = ',') {
                out.append(before).append(numberOf((TreeNode) children.next()));
            }
            out.append("],");
        } else {
            out.append("null,");
        }
        writeFields(node, out);
        if (node instanceof Expression) {
            writeExpression((Expression) node, out);
        }
        out.append(']');
        int number = nodes.size(); // its children have lower ones
        nodes.add(node);
        numbers.put(node, Integer.valueOf(number));
        newNodes.append(newNodes.length() == 0 ? "" : ",").append(out);
        return number;
    }

    private void writeFields(Product of, StringBuilder out) {
        out.append('[');
        for (int place = 0; place < of.productArity(); place++) {
            out.append(place == 0 ? "" : ",");
            write(of.productElement(place), out);
        }
        out.append(']');
    }

    private void writeExpression(Expression node, StringBuilder out) {
        boolean deterministic = node.deterministic();
        int flags = deterministic ? DETERMINISTIC : 0;
        Integer type = null;
        try {
            flags |= (node.foldable() ? FOLDABLE : 0) | (node.nullable() ? NULLABLE : 0);
            type = Integer.valueOf(typeNumber(node.dataType()));
        } catch (Exception error) {
            type = null; // it has none: it is asked for in vain
        }
        Object same = deterministic ? node.canonicalized() : node;
        Integer key = (Integer) keys.get(same);
        if (key == null) {
            key = Integer.valueOf(keys.size());
            keys.put(same, key);
        }
        flags |= node.containsPattern(TreePattern.CURRENT_LIKE()) ? CURRENT_LIKE : 0;
        flags |= node.containsPattern(TreePattern.PYTHON_UDF()) ? PYTHON_UDF : 0;
        out.append(',').append(flags).append(',').append(type).append(',').append(key);
        if (node instanceof Cast && ((Cast) node).child() instanceof Literal) {
            writeEvaluated(node, out);
        } else {
            out.append(",null");
        }
        if (node instanceof NamedExpression) {
            writeName((NamedExpression) node, out);
        }
    }

    private void writeEvaluated(Expression node, StringBuilder out) {
        Object value;
        try {
            value = node.eval(null);
        } catch (Exception error) {
            out.append(",null"); // it is raised when the value is asked for
            return;
        }
        out.append(",[");
        write(value, out);
        out.append(']');
    }

    private void writeName(NamedExpression node, StringBuilder out) {
        int before = out.length();
        try {
            out.append(',').append(node.exprId().id()).append(',');
            text(node.name(), out);
            String metadata = node.metadata().json();
            out.append(',');
            if (metadata.equals("{}")) {
                out.append("null");
            } else {
                text(metadata, out);
            }
        } catch (Exception error) {
            out.setLength(before); // it is not resolved
        }
    }

    private int classNumber(Object of) {
        Class java = of.getClass();
        Integer known = (Integer) classNumbers.get(java);
        if (known != null) {
            return known.intValue();
        }
        StringBuilder out = new StringBuilder("[");
        text(java.getName(), out);
        out.append(',');
        text(java.getSimpleName(), out);
        out.append(",[");
        Set above = new LinkedHashSet();
        collectAbove(java, above);
        Object[] names = above.toArray();
        for (int place = 0; place < names.length; place++) {
            out.append(place == 0 ? "" : ",");
            text((String) names[place], out);
        }
        out.append("],[");
        Product product = (Product) of;
        for (int place = 0; place < product.productArity(); place++) {
            out.append(place == 0 ? "" : ",");
            text(product.productElementName(place), out);
        }
        out.append("]]");
        int number = classNumbers.size();
        classNumbers.put(java, Integer.valueOf(number));
        newClasses.append(newClasses.length() == 0 ? "" : ",").append(out);
        return number;
    }

    private static void collectAbove(Class java, Set names) {
        names.add(java.getSimpleName());
        if (java.getSuperclass() != null) {
            collectAbove(java.getSuperclass(), names);
        }
        Class[] interfaces = java.getInterfaces();
        for (int place = 0; place < interfaces.length; place++) {
            collectAbove(interfaces[place], names);
        }
    }

    private int typeNumber(DataType type) {
        Integer known = (Integer) typeNumbers.get(type);
        if (known != null) {
            return known.intValue();
        }
        StringBuilder out = new StringBuilder("[").append(type.json()).append(',');
        text(type.catalogString(), out);
        out.append(']');
        int number = types.size();
        types.add(type);
        typeNumbers.put(type, Integer.valueOf(number));
        newTypes.append(newTypes.length() == 0 ? "" : ",").append(out);
        return number;
    }

    /** Writes a value. */
    private void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long
            || value instanceof Short || value instanceof Byte) {
            out.append(value);
        } else if (value instanceof String || value instanceof Character) {
            text("s" + value, out);
        } else if (value instanceof Expression || value instanceof LogicalPlan) {
            out.append("\"n").append(numberOf((TreeNode) value)).append('"');
        } else if (value instanceof DataType) {
            out.append("\"t").append(typeNumber((DataType) value)).append('"');
        } else if (value instanceof ExprId) {
            out.append("\"e").append(((ExprId) value).id()).append('"');
        } else if (value instanceof Metadata) {
            text("m" + ((Metadata) value).json(), out);
        } else if (value instanceof Float || value instanceof Double) {
            text("f" + value, out);
        } else if (value instanceof byte[]) {
            text("b" + Base64.getEncoder().encodeToString((byte[]) value), out);
        } else if (value instanceof Option) {
            out.append("[\"option\"");
            if (((Option) value).isDefined()) {
                out.append(',');
                write(((Option) value).get(), out);
            }
            out.append(']');
        } else if (value instanceof Seq && isWritten((Seq) value)) {
            writeItems(((Seq) value).iterator(), out);
        } else if (value instanceof AttributeSet) {
            writeItems(((AttributeSet) value).iterator(), out);
        } else if (value instanceof Product && value.getClass().getPackageName().equals(EXPRESSIONS)
            && !(value instanceof TreeNode)) {
            out.append("[\"parts\",").append(classNumber(value)).append(',');
            writeFields((Product) value, out);
            out.append(']');
        } else {
            writeObject(value, out);
        }
    }

    private void writeItems(Iterator items, StringBuilder out) {
        out.append("[\"items\",[");
        for (boolean first = true; items.hasNext(); first = false) {
            out.append(first ? "" : ",");
            write(items.next(), out);
        }
        out.append("]]");
    }

    /** Writes what an object is, and its text if that is what it is there for. */
    private static void writeObject(Object value, StringBuilder out) {
        String name = value.getClass().getName();
        out.append("[\"object\",");
        text(name, out);
        out.append(',');
        text(value.getClass().getSimpleName(), out);
        if (value instanceof UTF8String || value instanceof Decimal || value instanceof Enumeration.Value
            || name.endsWith("$")) {
            out.append(',');
            text(value.toString(), out);
        }
        out.append(']');
    }

    /** Returns whether the items are such as are written: not rows, of which there may be many. */
    private static boolean isWritten(Seq items) {
        if (items.isEmpty()) {
            return true;
        }
        Object first = items.head();
        return first instanceof Expression || first instanceof LogicalPlan || first instanceof String
            || first instanceof Option || first instanceof DataType || (first instanceof Seq && isWritten((Seq) first));
    }

    private static void text(String value, StringBuilder out) {
        out.append('"');
        for (int place = 0; place < value.length(); place++) {
            char letter = value.charAt(place);
            if (letter == '"' || letter == '\\') {
                out.append('\\').append(letter);
            } else if (letter < ' ' || Character.isSurrogate(letter)) {
                out.append(String.format("\\u%04x", new Object[] {Integer.valueOf(letter)}));
            } else {
                out.append(letter);
            }
        }
        out.append('"');
    }
}
