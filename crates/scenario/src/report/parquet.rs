//! Tables as Parquet files.
//!
//! Why: data frames read them with their types, and much faster than text.
//! From: the crate `parquet`, without Arrow and without compression: the tables are small.
//! Not here: which tables there are (`tables`).
//! Invariant: texts are UTF-8 strings, numbers doubles, and an empty cell is null.

use std::io;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::grid::{Cells, Column, Grid};

/// The table as a file's bytes.
pub(super) fn bytes(grid: &Grid) -> io::Result<Vec<u8>> {
    write(grid).map_err(io::Error::other)
}

fn write(grid: &Grid) -> Result<Vec<u8>, ParquetError> {
    let columns = grid.columns.iter().map(|column| field(column).map(Arc::new)).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("plimsoll").with_fields(columns).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), properties)?;
    let mut group = writer.next_row_group()?;
    for column in &grid.columns {
        write_column(&mut group, &column.cells)?;
    }
    group.close()?;
    writer.into_inner()
}

fn field(column: &Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match column.cells {
        Cells::Texts(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Cells::Numbers(..) => (Physical::DOUBLE, None),
    };
    let builder = Type::primitive_type_builder(&column.name, physical);
    builder.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build()
}

fn write_column(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    cells: &Cells,
) -> Result<(), ParquetError> {
    let Some(mut writer) = group.next_column()? else { return Ok(()) };
    match cells {
        Cells::Texts(texts) => {
            let there: Vec<ByteArray> =
                texts.iter().flatten().map(|text| ByteArray::from(text.as_str())).collect();
            writer.typed::<ByteArrayType>().write_batch(&there, Some(&levels(texts)), None)?;
        }
        Cells::Numbers(numbers, _) => {
            let there: Vec<f64> = numbers.iter().flatten().copied().collect();
            writer.typed::<DoubleType>().write_batch(&there, Some(&levels(numbers)), None)?;
        }
    }
    writer.close()
}

/// For each cell 1, or 0 where it is empty.
fn levels<T>(cells: &[Option<T>]) -> Vec<i16> {
    cells.iter().map(|cell| i16::from(cell.is_some())).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    #[test]
    fn what_is_written_is_read_back_with_its_types() {
        let mut grid = Grid::default().text("system").number("p99_s").decimals("rate", 0);
        grid.line(["plimsoll".into(), Some(0.25).into(), 9e9.into()]);
        grid.line(["fifo, \"plain\"".into(), None.into(), 1.5.into()]);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes(&grid).expect("written")).expect("written");
        let reader = SerializedFileReader::new(file).expect("Parquet");
        let rows: Vec<Vec<(String, Field)>> = reader
            .get_row_iter(None)
            .expect("rows")
            .map(|row| {
                row.expect("a row")
                    .get_column_iter()
                    .map(|(name, field)| (name.clone(), field.clone()))
                    .collect()
            })
            .collect();
        let named = |name: &str, field| (name.to_owned(), field);
        assert_eq!(rows[0][0], named("system", Field::Str("plimsoll".to_owned())));
        assert_eq!(rows[0][2], named("rate", Field::Double(9e9)));
        assert_eq!(rows[1][0], named("system", Field::Str("fifo, \"plain\"".to_owned())));
        assert_eq!(rows[1][1], named("p99_s", Field::Null));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn an_empty_table_is_a_file_too() {
        let file = bytes(&Grid::default().text("system")).expect("written");
        assert_eq!(&file[..4], b"PAR1");
    }
}
